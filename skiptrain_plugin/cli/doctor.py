"""``skiptrain doctor``: what is installed and found, and what to do about what is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys

import click

from skiptrain_plugin import __version__
from skiptrain_plugin.cli.show import show_table
from skiptrain_plugin.processor import usable_cores
from skiptrain_plugin.resources import resource_folder

_LIBRARIES = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "networkx",
    "matplotlib",
    "pydantic",
    "safetensors",
    "pyzmq",
)


@click.command()
def doctor() -> None:
    """Check the installation; exit code 1 when something needed is missing."""
    from skiptrain_plugin.data import listing

    rows, healthy = [], True
    rows.append(("skiptrain-plugin", __version__, ""))
    rows.append(("Python", platform.python_version(), sys.executable))
    rows.append(("cores", str(usable_cores()), platform.processor() or platform.machine()))
    for name in _LIBRARIES:
        version = _version(name)
        healthy &= version is not None
        rows.append((name, version or "missing", "" if version else f"pip install {name}"))
    rows.append(_torchvision_row())
    rows.append(_kernel_row())
    framework = importlib.util.find_spec("decentralizepy") is not None
    rows.append(
        (
            "DecentralizePy",
            _version("decentralizepy") or ("found" if framework else "not installed"),
            "" if framework else "needed only for deployments; get it from github.com/sacs-epfl/decentralizepy",
        )
    )
    for folder in ("config_templates", "energy_traces"):
        found = resource_folder(folder).is_dir()
        healthy &= found
        rows.append((folder, "found" if found else "missing", str(resource_folder(folder))))
    for one in listing():
        rows.append((f"data: {one.name}", "here" if one.present else "not here", "" if one.present else one.how))
    show_table("", ("what", "state", "note"), rows)
    if not healthy:
        raise SystemExit(1)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torchvision_row() -> tuple[str, str, str]:
    from skiptrain_plugin.torchvision_fix import import_torchvision

    try:
        import_torchvision()
    except (ImportError, RuntimeError) as error:
        return "torchvision import", "fails", str(error).splitlines()[0]
    return "torchvision import", "works", ""


def _kernel_row() -> tuple[str, str, str]:
    from skiptrain_plugin.kernels.selection import why_not

    reason = why_not()
    return "native kernel", "not used" if reason else "works", f"{reason}; torch is used, slower" if reason else ""
