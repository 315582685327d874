"""The one place that says what to do where DecentralizePy is not installed; the plugin modules import it first."""

from __future__ import annotations

import importlib.util

from skiptrain_plugin import torchvision_fix

MISSING = (
    "DecentralizePy is not installed: clone github.com/sacs-epfl/decentralizepy and run `pip install -e` on the clone"
    " (it is not on PyPI; a package of that name there would be somebody else's)"
)


def installed() -> bool:
    """Whether DecentralizePy can be imported."""
    return importlib.util.find_spec("decentralizepy") is not None


def require() -> None:
    """An ImportError of one sentence where DecentralizePy is missing. After it, its datasets can import torchvision."""
    torchvision_fix.install()
    if not installed():
        raise ImportError(MISSING, name="decentralizepy")
