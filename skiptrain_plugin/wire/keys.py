"""CURVE key files: ``public.json`` for everybody, ``node-UID.secret`` for one node.

A public key and a secret are 40 characters Z85 (32 bytes). A secret file is readable by its owner only, from the moment
it exists.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.files import read_text

PUBLIC_FILE = "public.json"
FORMAT = "skiptrain public keys 1"

_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_SECRET_FILE = re.compile(r"node-(0|-?[1-9][0-9]*)\.secret")
_MACHINE_FOLDER = re.compile(r"machine-(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class KeyRing:
    """What one node needs: everybody's public key and its own secret, all Z85."""

    uid: int
    public: Mapping[int, str]
    secret: str = field(repr=False)

    def raw(self) -> dict[bytes, int]:
        """Raw public key (32 bytes) → uid."""
        return {z85.decode(key): uid for uid, key in self.public.items()}


def secret_name(uid: int) -> str:
    """The name of a node's secret file."""
    return f"node-{uid}.secret"


def load_keys(folder: str | Path, uid: int) -> KeyRing:
    """The keys of node ``uid`` from ``folder``; refuses files that are missing, malformed or open to others."""
    if not str(folder):
        raise InputError("COMMUNICATION.keys names no directory; make one with 'skiptrain keys --nodes N --out DIR'")
    folder = Path(folder).expanduser()
    public = read_public(folder / PUBLIC_FILE)
    if uid not in public:
        raise InputError(f"{folder / PUBLIC_FILE} has no key for node {uid}")
    path = folder / secret_name(uid)
    secret = _read_secret(path)
    if zmq.curve_public(secret.encode()).decode() != public[uid]:
        raise InputError(f"secret file {path} does not belong to the public key of node {uid} in {PUBLIC_FILE}")
    return KeyRing(uid, public, secret)


def read_public(path: Path) -> dict[int, str]:
    """uid → public key, from a ``public.json``; two nodes never share a key."""
    try:
        content = json.loads(read_text(path, "public key file"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"public key file {path}: {error}") from None
    nodes = content.get("nodes") if isinstance(content, dict) else None
    if not isinstance(nodes, dict) or content.get("format") != FORMAT:
        raise InputError(f"public key file {path}: its format is not '{FORMAT}'")
    public: dict[int, str] = {}
    for name, key in nodes.items():
        if _SECRET_FILE.fullmatch(f"node-{name}.secret") is None or not isinstance(key, str) or not _is_key(key):
            raise InputError(f"public key file {path}: the entry of node '{name[:20]}' is not a key")
        public[int(name)] = key
    if len(set(public.values())) != len(public):
        raise InputError(f"public key file {path}: two nodes have the same key")
    return public


def _read_secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            permissions = os.fstat(file.fileno()).st_mode
            secret = file.read(100).decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise InputError(f"secret file {path} does not exist") from None
    except OSError as error:
        raise InputError(f"secret file {path} cannot be read: {error.strerror}") from None
    if os.name == "posix" and permissions & 0o077:
        raise InputError(f"secret file {path} can be read by others; make it private with: chmod 600 {path}")
    if not _is_key(secret):
        raise InputError(f"secret file {path} does not hold a key of 40 characters")
    return secret


def _is_key(text: str) -> bool:
    if _KEY.fullmatch(text) is None:
        return False
    try:
        return len(z85.decode(text)) == 32 and bool(zmq.curve_public(text.encode()))
    except Exception:
        return False


def make_keys(folder: Path, machines: Iterable[Iterable[int]], *, force: bool = False) -> None:
    """Makes a key pair for every uid and writes them to ``folder``, which appears whole or not at all.

    With more than one machine, ``folder`` also gets a ``machine-K`` for each: a copy of ``public.json`` and of the
    secrets of its own nodes. An existing folder must be empty, or hold nothing but keys and ``force`` be given.
    """
    groups = [list(group) for group in machines]
    pairs = {uid: zmq.curve_keypair() for group in groups for uid in group}
    public = {str(uid): pair[0].decode() for uid, pair in pairs.items()}
    listing = json.dumps({"format": FORMAT, "nodes": public}, indent=1) + "\n"
    folder = folder.expanduser().resolve()
    _check_replaceable(folder, force)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write(building, listing, {uid: pair[1] for uid, pair in pairs.items()})
            for number, group in enumerate(groups if len(groups) > 1 else []):
                machine = building / f"machine-{number}"
                machine.mkdir(mode=0o700)
                _write(machine, listing, {uid: pairs[uid][1] for uid in group})
            if folder.exists():
                shutil.rmtree(folder)
            building.rename(folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    except OSError as error:
        raise InputError(f"keys cannot be written to {folder}: {error.strerror}") from None


def _write(folder: Path, listing: str, secrets: Mapping[int, bytes]) -> None:
    _create(folder / PUBLIC_FILE, listing.encode(), 0o644)
    for uid, secret in secrets.items():
        _create(folder / secret_name(uid), secret + b"\n", 0o600)


def _create(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(content)


def _check_replaceable(folder: Path, force: bool) -> None:
    try:
        if not folder.exists():
            return
        if not folder.is_dir():
            raise InputError(f"{folder} is not a directory")
        entries = [path.relative_to(folder) for path in folder.rglob("*")]
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from None
    other = [entry for entry in entries if not _is_ours(entry)]
    if other:
        raise InputError(f"{folder} holds other files ({min(other)}); keys get a directory of their own")
    if entries and not force:
        raise InputError(
            f"{folder} already holds keys; --force replaces them, and nodes with the old ones are shut out"
        )


def _is_ours(entry: Path) -> bool:
    *above, name = entry.parts
    if len(above) > 1 or any(_MACHINE_FOLDER.fullmatch(part) is None for part in above):
        return False
    known = name == PUBLIC_FILE or _SECRET_FILE.fullmatch(name) is not None
    return known or (not above and _MACHINE_FOLDER.fullmatch(name) is not None)
