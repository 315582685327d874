"""Append-only files of JSON lines, each with a checksum, so that damage is found and a cut line is known."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from skiptrain_plugin.atomic import sync_folder
from skiptrain_plugin.errors import InputError

_MARK = ', "crc": "'


def format_line(values: dict[str, Any]) -> bytes:
    """One line: the JSON object with the CRC-32 of everything before it as its last key, ``crc``."""
    body = json.dumps(values, allow_nan=False)[:-1].encode()
    return body + f'{_MARK}{zlib.crc32(body):08x}"}}\n'.encode()


def parse_line(line: bytes, place: str) -> dict[str, Any]:
    """The values of a line written by ``format_line``; ``place`` names it when it is damaged."""
    body, mark, end = line.rpartition(_MARK.encode())
    if not mark or end.strip() != f'{zlib.crc32(body):08x}"}}'.encode():
        raise InputError(f"{place}: damaged (its checksum does not match)")
    try:
        values = json.loads(body + b"}")
    except ValueError:
        raise InputError(f"{place}: damaged (not JSON)") from None
    if not isinstance(values, dict):
        raise InputError(f"{place}: damaged (not an object)")
    return values


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of ``path``; a last line without its end was cut off by a crash and is left out."""
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    return [parse_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def cut_lines(path: Path, count: int) -> None:
    """Keeps the first ``count`` lines and drops what was written after them."""
    if not path.exists():
        if count:
            raise InputError(f"{path} is missing; the checkpoint says that it had {count} lines")
        return
    content = path.read_bytes().split(b"\n")
    if len(content) - 1 < count:
        raise InputError(f"{path} has {len(content) - 1} whole lines; the checkpoint says that it had {count}")
    kept = b"".join(line + b"\n" for line in content[:count])
    for number, line in enumerate(content[:count], start=1):
        parse_line(line, f"{path}, line {number}")
    with path.open("r+b") as file:
        file.truncate(len(kept))
        os.fsync(file.fileno())


class LineWriter:
    """Appends lines to a file; each is handed to the system whole, and all are on the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        new = not path.exists()
        self._file: BinaryIO = path.open("ab", buffering=0)
        self.path = path
        if new:
            sync_folder(path.parent)

    def append(self, values: dict[str, Any]) -> None:
        """Adds one line."""
        line = format_line(values)
        written = self._file.write(line)
        if written != len(line):
            raise OSError(28, f"only {written} of {len(line)} bytes of a line could be written to {self.path}")

    def sync(self) -> None:
        """Waits until everything appended so far is on the disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.sync()
        finally:
            self._file.close()
