"""Reading the user's text files: one place, so that every failure has the same clear sentence."""

from __future__ import annotations

from pathlib import Path

from skiptrain_plugin.algorithm.graph_text import parse_graph
from skiptrain_plugin.algorithm.topology import Topology
from skiptrain_plugin.energy.devices import Device, Trace
from skiptrain_plugin.energy.trace_csv import parse_devices, parse_trace
from skiptrain_plugin.errors import InputError

_MOST_BYTES = 64 * 2**20


def read_text(path: Path, what: str) -> str:
    """The text of ``path`` (UTF-8, with or without a byte-order mark); ``what`` names it in errors."""
    try:
        if path.is_dir():
            raise InputError(f"{what} {path} is a directory, not a file")
        if path.exists() and not path.is_file():
            raise InputError(f"{what} {path} is not a regular file")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InputError(f"{what} {path} is larger than {_MOST_BYTES // 2**20} MiB")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{what} {path} does not exist") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not a text file (byte {error.start} is not UTF-8)") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{what} {str(path)[:120]!r} cannot be read: {reason}") from None
    if "\0" in text:
        raise InputError(f"{what} {path} is not a text file (it contains a NUL byte)")
    return text


def find(name: str, folders: list[Path], what: str) -> Path:
    """The file ``name``, absolute or in the first of ``folders`` that has it."""
    path = Path(name).expanduser()
    if path.is_absolute():
        return path
    places = [folder / path for folder in folders]
    try:
        return next((place.resolve() for place in places if place.is_file()), places[0])
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{what} {name[:120]!r} cannot be read: {reason}") from None


def read_graph(path: Path, graph_type: str) -> Topology:
    """The topology in a DecentralizePy graph file."""
    return parse_graph(read_text(path, "graph file"), graph_type, str(path))


def read_trace(path: Path) -> Trace:
    """An energy trace."""
    return parse_trace(read_text(path, "energy trace"), str(path))


def read_devices(path: Path) -> tuple[Device, ...]:
    """The rows of a device table."""
    return parse_devices(read_text(path, "device table"), str(path))
