"""Classes that an INI names: imported and found, or refused in one sentence with the nearest match.

An import runs the code of the module that is named, whatever that code does.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from skiptrain_plugin import torchvision_fix
from skiptrain_plugin.errors import InputError, nearest


def first_line(error: BaseException) -> str:
    """Kind and first line of an error of somebody else's code."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def import_named(package: str, where: str) -> ModuleType:
    """The module ``package``; ``where`` stands in the error, whatever the import raises."""
    torchvision_fix.install()
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise InputError(f"{where}: importing {package} fails: {first_line(error)}") from error
        raise InputError(f"{where}: there is no module '{package}'{_nearest_module(error.name)}") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{where}: importing '{package}' fails: {first_line(error)}") from error


def named(package: str, name: str, where: str, accept: Callable[[Any], bool]) -> Any:
    """What module ``package`` calls ``name``, if it is something that ``accept`` accepts."""
    module = import_named(package, where)
    found = getattr(module, name, None)
    if not accept(found):
        kind = "class" if found is None else f"class, but a {type(found).__name__},"
        others = [other for other, value in vars(module).items() if accept(value) and not other.startswith("_")]
        raise InputError(f"{where}: {package} has no {kind} '{name}'{nearest(name, others)}")
    return found


def named_class(package: str, name: str, where: str) -> type:
    """The class ``name`` of module ``package``; ``where`` stands in the error."""
    found: type = named(package, name, where, lambda value: isinstance(value, type))
    return found


def _nearest_module(missing: str) -> str:
    """A hint at the module most like ``missing`` beside which it should have been."""
    parent, dot, name = missing.rpartition(".")
    places = None
    if parent:
        spec = importlib.util.find_spec(parent)
        places = list(spec.submodule_search_locations or []) if spec is not None else []
    return nearest(name, [module.name for module in pkgutil.iter_modules(places)], parent + dot)
