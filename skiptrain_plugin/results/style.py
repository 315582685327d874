"""Names, colours and marks of the algorithms: the same in every figure, distinct without colour too."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

_LONGEST = 160


@dataclass(frozen=True)
class Mark:
    """How a line is drawn; colours follow Okabe and Ito, so that colour-blind readers can tell them apart."""

    colour: str
    dark_colour: str
    """On a dark background."""
    marker: str
    """Matplotlib's letter."""
    dashes: tuple[float, ...]
    """On and off, in line widths; empty: solid."""


MARKS: dict[str, Mark] = {
    "skiptrain": Mark("#0072B2", "#56B4E9", "o", ()),
    "skiptrain_constrained": Mark("#00795A", "#2CC79A", "^", ()),
    "dpsgd": Mark("#D55E00", "#FF8A3D", "s", (4.0, 1.5)),
    "greedy": Mark("#9A6A00", "#F0B429", "D", (5.0, 1.5, 1.0, 1.5)),
    "allreduce": Mark("#A8467F", "#E59AC4", "v", (1.2, 1.2)),
    "mean_model": Mark("#333333", "#D0D0D0", "P", (7.0, 2.0)),
    "other": Mark("#5B5BD6", "#A5A5FF", "X", (2.5, 1.0)),
}

NAMES = {
    "dpsgd": "D-PSGD",
    "allreduce": "D-PSGD with all-reduce",
    "greedy": "Greedy",
    "skiptrain": "SkipTrain",
    "skiptrain_constrained": "SkipTrain-constrained",
}


def algorithm_name(algorithm: str) -> str:
    """The algorithm as the paper writes it; a third party's by its own name."""
    return NAMES.get(algorithm, clean(algorithm))


def style_of(algorithm: str) -> str:
    """The key of ``MARKS`` for an algorithm."""
    return algorithm if algorithm in MARKS else "other"


def clean(text: object, longest: int = _LONGEST) -> str:
    """Text from a record as one printable line: no control, format or private characters, not too long."""
    kept = "".join(" " if c.isspace() else c for c in str(text) if c.isspace() or unicodedata.category(c)[0] != "C")
    line = " ".join(kept.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
