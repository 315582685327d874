"""Where the INI templates and energy traces are: at the top of a checkout, or inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource_folder(name: str) -> Path:
    """The folder ``config_templates`` or ``energy_traces``."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def template(name: str) -> Path:
    """The INI template of that name, for example ``cifar.ini``."""
    return resource_folder("config_templates") / name


def packaged_trace(name: str) -> Path:
    """The device table or trace of that name, for example ``cifar.csv``."""
    return resource_folder("energy_traces") / name


def is_packaged_trace(name: str) -> bool:
    """Whether ``name`` is the bare name of a trace that comes with the project."""
    return any(path.name == name for path in resource_folder("energy_traces").iterdir())
