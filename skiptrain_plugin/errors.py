"""Errors that end a command with one clear sentence instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

INTERRUPTED_EXIT = 130
"""What a command ends with after Ctrl-C or SIGTERM."""


class SkipTrainError(Exception):
    """Base of every error this project raises on purpose; ``exit_code`` is what the command ends with."""

    exit_code = 1


class InputError(SkipTrainError):
    """The user gave something that cannot work: a file, a key, a value, a combination of options."""

    exit_code = 2


class RunError(SkipTrainError):
    """A run failed although its input was valid."""

    exit_code = 1


def nearest(name: str, allowed: Iterable[str], prefix: str = "") -> str:
    """``"; did you mean 'x'?"`` for the name in ``allowed`` that is most like ``name``; nothing where none is.

    ``prefix`` is put before the name that is found.
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.6)
    return f"; did you mean '{prefix}{next(n for n in names if n.lower() == near[0])}'?" if near else ""


def unknown(what: str, name: str, allowed: Iterable[str], where: str = "") -> InputError:
    """The error for a name outside a known set: says where, what is allowed, and the nearest match."""
    names = sorted(allowed)
    place = f"{where}: " if where else ""
    return InputError(f"{place}unknown {what} '{name}'; allowed: {', '.join(names)}{nearest(name, names)}")
