"""What a run is beside its configuration: data, kernel, versions and machine.

Written when the run begins and compared whenever it goes on. What would change the numbers is refused; what may
change is kept as an event with the round from which it holds, and reports show it.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from skiptrain_plugin import __version__
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.processor import cpuinfo

_GIT_SECONDS = 5
_EVENTS = {
    ("torch",): "torch",
    ("versions", "skiptrain_plugin"): "skiptrain_plugin",
    ("versions", "python"): "Python",
    ("versions", "numpy"): "numpy",
    ("commit",): "the project's commit",
    ("host", "processor"): "processor",
    ("host", "system"): "system",
    ("workers",): "workers",
}
"""Where in ``run.json`` stands what may change in the course of a run, and its name in a report."""


def program() -> dict[str, Any]:
    """Versions, commit and machine of this process, for ``run.json``."""
    return {
        "versions": {
            "skiptrain_plugin": __version__,
            "python": platform.python_version(),
            "numpy": version("numpy"),
        },
        "commit": commit(),
        "host": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "processor": cpuinfo("model name", "Hardware", "cpu model") or platform.processor(),
        },
    }


@cache
def commit() -> str:
    """The commit of the checkout that this package runs from, with ``+`` where files differ; empty without one."""
    top = Path(__file__).resolve().parents[2]
    if not (top / ".git").exists():
        return ""
    try:
        head = _git(top, "rev-parse", "HEAD")
        return head + ("+" if _git(top, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True).stdout.strip()


def check_same(folder: Path, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuses to go on with a run whose data, kernel or version of torch would be others."""
    for what, path in (("the data's sha256", ("data", "sha256")), ("the kernel", ("kernels",))):
        before, after = _at(recorded, path), _at(now, path)
        if path == ("kernels",):
            before, after = _word(before), _word(after)
        if before and after and before != after:
            raise InputError(f"{folder}: {what} was {before} when the run began and is {after} here")
    before, after = str(_at(recorded, ("torch",)) or ""), str(_at(now, ("torch",)) or "")
    if before and after and _minor(before) != _minor(after):
        raise InputError(
            f"{folder}: the run began with torch {before} and this is torch {after}; only another patch version of the"
            " same may go on with it"
        )


def changes(recorded: Mapping[str, Any], now: Mapping[str, Any], completed: int) -> list[dict[str, Any]]:
    """What has changed since the run began or last went on, as events that hold after round ``completed``."""
    latest = {event["what"]: event["after"] for event in recorded.get("events", [])}
    found = []
    for path, what in _EVENTS.items():
        before, after = latest.get(what, _at(recorded, path)), _at(now, path)
        if before is not None and after is not None and before != after:
            found.append({"after_round": completed, "what": what, "before": before, "after": after})
    return found


def describe(events: object) -> list[str]:
    """The events of a ``run.json`` as sentences."""
    return [
        f"from round {event['after_round'] + 1} on {event['what']} is {event['after']}, before {event['before']}"
        for event in (events if isinstance(events, list) else [])
    ]


def _at(info: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = info
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _word(kernels: object) -> str:
    """``native`` or ``torch``, without the reason."""
    return str(kernels or "").partition(" ")[0]


def _minor(version_text: str) -> list[str]:
    return version_text.split("+")[0].split(".")[:2]
