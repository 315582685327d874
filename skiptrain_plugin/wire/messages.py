"""A message on the wire: a JSON header and a safetensors body. Decoding builds plain values and arrays, nothing else.

The header names sender, receiver, session and sequence number and holds the message as a tree: text, integers, finite
floats, booleans and null as themselves, everything else as a JSON list that starts with a kind: ``["l", …]`` list,
``["t", …]`` tuple, ``["s", …]`` set, ``["d", [key, value], …]`` dict, ``["f", "nan"]`` a float that JSON lacks; with
an index of an array of the body ``["a", i]`` array, ``["c", i]`` complex array as pairs of floats, ``["b", i]`` bytes;
``["n", tree]`` the NumPy scalar of a 0-d array.
"""

from __future__ import annotations

import json
import math
import pickletools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from skiptrain_plugin.errors import InputError, SkipTrainError
from skiptrain_plugin.wire.sessions import Session

FORMAT = 1
HEADER_LIMIT = 2**20
"""Bytes that a header may have; also the limit of the index inside a safetensors body."""
ARRAY_LIMIT = 4096
"""Arrays that a message may carry."""
DEPTH_LIMIT = 24
"""Levels of containers in a message."""

MALFORMED = "malformed"
OVERSIZED = "oversized"

_DTYPES = frozenset(
    ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
)
_HEADER_KEYS = frozenset(("format", "uid", "to", "session", "sequence", "data"))
_INTEGER_DIGITS = 40
_SEQUENCES = range(1, 2**63)
_NONCE = re.compile(r"[0-9a-f]{16}")


class MalformedMessage(SkipTrainError):
    """What arrived is not a message of this project; ``reason`` is the name under which it is counted."""

    def __init__(self, text: str, reason: str = MALFORMED) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Content:
    """An encoded message without sender and receiver: made once, sent to every neighbour."""

    tree: Any
    body: bytes
    params_bytes: int
    """Bytes of the arrays below the key ``params``, the model."""


@dataclass(frozen=True)
class Header:
    """What a header says about its message."""

    uid: int
    """The sender, as it claims."""
    to: int
    """The receiver it was sent to."""
    session: Session
    sequence: int
    tree: Any


class Encoder:
    """Encodes messages, and a message that goes to several neighbours only once.

    The last message is used again when the very same dict, with the very same values, is encoded again, and only when
    it carries an ``iteration``: a round's message is built anew in every round. Whoever changes an array in place
    between two neighbours of one round must send a new dict.
    """

    def __init__(self) -> None:
        self._data: Mapping[Any, Any] | None = None
        self._values: list[Any] = []
        self._content: Content | None = None

    def encode(self, data: Mapping[Any, Any]) -> Content:
        """The encoded form of ``data``."""
        if "iteration" not in data:
            return encode(data)
        values = [part for item in data.items() for part in item]
        same = data is self._data and len(values) == len(self._values)
        if self._content is None or not (same and all(map(_is, values, self._values))):
            self._content = encode(data)
            self._data, self._values = data, values
        return self._content


def encode(data: Mapping[Any, Any]) -> Content:
    """Encodes a dict of plain values, bytes, NumPy arrays and scalars, torch tensors and containers of them.

    Tensors are received as arrays, ``bytearray`` as ``bytes``, arrays in the byte order of the receiver. A value of
    another type is a TypeError, pickled bytes are an InputError: whoever gets them would have to unpickle them.
    """
    arrays: dict[str, NDArray[Any]] = {}
    pairs: list[Any] = []
    params_bytes = 0
    for key, value in data.items():
        first = len(arrays)
        pairs.append([_key(key), _pack(value, arrays, 1, str(key))])
        if key == "params":
            params_bytes = sum(array.nbytes for array in list(arrays.values())[first:])
    if len(arrays) > ARRAY_LIMIT:
        raise InputError(f"a message carries {len(arrays)} arrays; at most {ARRAY_LIMIT} are sent")
    return Content(["d", *pairs], save(arrays) if arrays else b"", params_bytes)


def encode_header(content: Content, uid: int, to: int, session: Session, sequence: int) -> bytes:
    """The header that goes before the body of ``content``."""
    header = {
        "format": FORMAT,
        "uid": uid,
        "to": to,
        "session": [session.start_ns, session.nonce],
        "sequence": sequence,
        "data": content.tree,
    }
    encoded = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(encoded) > HEADER_LIMIT:
        raise InputError(
            f"the plain values of a message take {len(encoded)} bytes, more than {HEADER_LIMIT}; "
            "send long lists as NumPy arrays"
        )
    return encoded


def decode_header(frame: bytes) -> Header:
    """Reads a header; raises MalformedMessage and nothing else."""
    if len(frame) > HEADER_LIMIT:
        raise MalformedMessage(f"a header of {len(frame)} bytes", OVERSIZED)
    try:
        header = json.loads(frame.decode("ascii"), parse_int=_integer, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"the header is not JSON: {str(error)[:80]}") from None
    if not isinstance(header, dict) or header.keys() != _HEADER_KEYS or header["format"] != FORMAT:
        raise MalformedMessage(f"the header is not of format {FORMAT}")
    session = header["session"]
    if not isinstance(session, list) or len(session) != 2 or not isinstance(session[1], str):
        raise MalformedMessage("the header names no session")
    start, nonce = session
    if any(type(number) is not int for number in (header["uid"], header["to"], header["sequence"], start)):
        raise MalformedMessage("uid, to, session and sequence are not all integers")
    if header["sequence"] not in _SEQUENCES or start not in _SEQUENCES or _NONCE.fullmatch(nonce) is None:
        raise MalformedMessage("session or sequence number out of range")
    return Header(header["uid"], header["to"], Session(start, nonce), header["sequence"], header["data"])


def decode(tree: Any, body: bytes) -> dict[Any, Any]:
    """Builds the message from the tree of its header and its body; raises MalformedMessage and nothing else."""
    try:
        arrays = _load(body)
        data = _unpack(tree, arrays, 0)
    except MalformedMessage:
        raise
    except Exception as error:
        raise MalformedMessage(f"{type(error).__name__}: {str(error)[:80]}") from None
    if not isinstance(data, dict):
        raise MalformedMessage("the message is not a dict")
    if arrays:
        raise MalformedMessage(f"{len(arrays)} arrays of the body belong nowhere")
    return data


def _is(one: Any, other: Any) -> bool:
    return one is other


def _key(key: Any) -> Any:
    if key is None or isinstance(key, (bool, int, str)):
        return key
    if isinstance(key, np.integer):
        return int(key)
    raise TypeError(f"a key of type {type(key).__name__} cannot be sent")


def _pack(value: Any, arrays: dict[str, NDArray[Any]], depth: int, place: str) -> Any:
    if depth > DEPTH_LIMIT:
        raise TypeError(f"{place}: nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(value, np.generic) and not isinstance(value, (str, bytes)):
        return ["n", _pack_array(np.asarray(value), arrays, place)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if len(str(abs(value))) >= _INTEGER_DIGITS:
            raise TypeError(f"{place}: an integer of {_INTEGER_DIGITS} or more digits cannot be sent")
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ["f", str(float(value))]
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        if _is_pickle(raw):
            raise InputError(
                f"'{place}' holds pickled bytes, which no receiver of this transport may unpickle (the compression "
                "classes Quantization and EliasQuantization make them); choose another compression_class"
            )
        return ["b", _add(np.frombuffer(raw, dtype=np.uint8), arrays)]
    if isinstance(value, Mapping):
        return ["d", *([_key(key), _pack(item, arrays, depth + 1, f"{place}/{key}")] for key, item in value.items())]
    for kind, types in (("l", list), ("t", tuple), ("s", (set, frozenset))):
        if isinstance(value, types):
            return [kind, *(_pack(item, arrays, depth + 1, place) for item in value)]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.numpy(force=True)
    if isinstance(value, np.ndarray):
        return _pack_array(value, arrays, place)
    raise TypeError(f"'{place}': a value of type {type(value).__name__} cannot be sent")


def _pack_array(array: NDArray[Any], arrays: dict[str, NDArray[Any]], place: str) -> list[Any]:
    kind = "a"
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    if native.dtype.name in ("complex64", "complex128"):
        kind = "c"
        native = native.reshape(*array.shape, 1).view(native.real.dtype)
    if native.dtype.name not in _DTYPES:
        raise TypeError(f"'{place}': an array of {array.dtype} cannot be sent")
    return [kind, _add(native, arrays)]


def _add(array: NDArray[Any], arrays: dict[str, NDArray[Any]]) -> int:
    index = len(arrays)
    arrays[str(index)] = array
    return index


def _is_pickle(raw: bytes) -> bool:
    """Whether ``raw`` is a whole pickle; its operations are listed, never carried out."""
    if raw[:1] != b"\x80" or raw[-1:] != b".":
        return False
    try:
        last = [position for _, _, position in pickletools.genops(raw)][-1]
    except (ValueError, OverflowError):
        return False
    return last == len(raw) - 1


def _integer(text: str) -> int:
    if len(text) > _INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"'{name}' is not JSON")


def _load(body: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a body, writable."""
    if not body:
        return {}
    if len(body) < 8 or int.from_bytes(body[:8], "little") > HEADER_LIMIT:
        raise MalformedMessage("the body is not safetensors")
    arrays: dict[str, NDArray[Any]] = load(body)
    if len(arrays) > ARRAY_LIMIT:
        raise MalformedMessage(f"the body holds {len(arrays)} arrays", OVERSIZED)
    return {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}


def _unpack(tree: Any, arrays: dict[str, NDArray[Any]], depth: int) -> Any:
    if depth > DEPTH_LIMIT:
        raise MalformedMessage("nested too deeply")
    if not isinstance(tree, list):
        if isinstance(tree, dict):
            raise MalformedMessage("a JSON object inside the message")
        return tree
    kind, *parts = tree
    if kind == "d":
        data = {_plain_key(key): _unpack(value, arrays, depth + 1) for key, value in parts}
        if len(data) != len(parts):
            raise MalformedMessage("a key appears twice")
        return data
    if kind in ("l", "t", "s"):
        items = [_unpack(part, arrays, depth + 1) for part in parts]
        return items if kind == "l" else tuple(items) if kind == "t" else set(items)
    (part,) = parts
    if kind == "f" and part in ("nan", "inf", "-inf"):
        return float(part)
    if kind == "n":
        if not isinstance(part, list) or part[:1] not in (["a"], ["c"]):
            raise MalformedMessage("a scalar without array")
        return _unpack(part, arrays, depth + 1)[()]
    if type(part) is not int:
        raise MalformedMessage("an array without index")
    array = arrays.pop(str(part))
    if kind == "a":
        return array
    if kind == "b" and array.dtype == np.uint8 and array.ndim == 1:
        return array.tobytes()
    if kind == "c" and array.dtype.name in ("float32", "float64") and array.shape[-1:] == (2,):
        return array.view(np.result_type(array.dtype, np.complex64)).reshape(array.shape[:-1])
    raise MalformedMessage("a value of unknown kind")


def _plain_key(key: Any) -> Any:
    if key is None or isinstance(key, (bool, int, str)):
        return key
    raise MalformedMessage("a key is not plain")
