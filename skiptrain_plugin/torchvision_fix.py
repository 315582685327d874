"""Importing torchvision beside a torch for which its compiled operators were not built.

A CPU-only torch beside a torchvision wheel built against CUDA cannot load that wheel's operators, and
torchvision then stops on import because ``torchvision::nms`` and ``torchvision::qnms`` do not exist,
although datasets and transforms need neither. Declaring the two names (without an implementation) cures
it. Where torchvision imports as it is, nothing is declared: a second declaration of an operator that
exists would be an error.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[object] = []  # torch takes the operators back when their Library object is deleted


def import_torchvision() -> ModuleType:
    """torchvision, imported once and cured if need be; an ImportError when it is not installed."""
    ready = sys.modules.get("torchvision")
    if ready is not None:
        return ready
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
        del sys.modules[name]
    _declare_missing()
    return importlib.import_module("torchvision")


def _declare_missing() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    _declared.append(library)
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)  # type: ignore[no-untyped-call]
