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
    except (Exception, SystemExit) as error:
        reason = first_line(error)
        if isinstance(error, ModuleNotFoundError) and error.name and f"{package}.".startswith(f"{error.name}."):
            reason = f"there is no module {error.name}{_nearest_module(error.name)}"
        raise InputError(f"{where}: cannot import {package}: {reason}") from error


def named(package: str, name: str, where: str, accept: Callable[[Any], bool]) -> Any:
    """What module ``package`` calls ``name``, if it is something that ``accept`` accepts."""
    module = import_named(package, where)
    found = getattr(module, name, None)
    if accept(found):
        return found
    others = [other for other, value in vars(module).items() if accept(value) and not other.startswith("_")]
    if found is not None:
        raise InputError(f"{where}: {name} of {package} is a {type(found).__name__}, not a class")
    raise InputError(f"{where}: {package} has no class {name}{nearest(name, others)}")


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
