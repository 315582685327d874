"""Importing torchvision beside a torch for which its compiled operators were not built.

A CPU-only torch beside a torchvision wheel built against CUDA cannot load that wheel's operators, and
torchvision then stops on import because ``torchvision::nms`` and ``torchvision::qnms`` do not exist,
although datasets and transforms need neither. Declaring the two names (without an implementation) cures
it. Where torchvision imports as it is, nothing is declared: a second declaration of an operator that
exists would be an error.

Whoever imports torchvision does it in his own words: the framework's datasets, a user's model. ``install``
therefore puts the cure into Python's import itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_NAME = "torchvision"
_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[object] = []  # torch takes the operators back when their Library object is deleted


class _CuringLoader(SourceFileLoader):
    """Runs torchvision's ``__init__``; a second time, with the operators declared, when it misses them."""

    def exec_module(self, module: ModuleType) -> None:
        """Fills ``module``."""
        try:
            super().exec_module(module)
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
            for name in [name for name in sys.modules if name.startswith(f"{_NAME}.")]:
                del sys.modules[name]
            _declare_missing()
            super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds torchvision where Python would, and has it loaded by the loader that cures it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for every other module: the next finder's business."""
        if fullname != _NAME:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _CuringLoader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """From now on every import of torchvision in this process is cured if need be, whoever writes it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def import_torchvision() -> ModuleType:
    """torchvision, imported once and cured if need be; an ImportError when it is not installed."""
    install()
    return importlib.import_module(_NAME)


def _declare_missing() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    _declared.append(library)
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)  # type: ignore[no-untyped-call]
