"""Messages: everything that the sharing classes send comes back as it was, and nothing that arrives can do harm."""

from __future__ import annotations

import json
import math
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.wire import messages
from skiptrain_plugin.wire.messages import Encoder, MalformedMessage, decode, decode_header, encode, encode_header
from skiptrain_plugin.wire.sessions import OLD_SESSION, REPLAYED, ReplayGuard, Session

SESSION = Session(1_700_000_000_000_000_000, "0123456789abcdef")
DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8", "c16"]
MODEL = {"params": np.arange(12, dtype=np.float32), "iteration": 3, "degree": 6, "CHANNEL": "DPSGD"}


class Bomb:
    """Unpickling it creates the directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def travel(data):
    content = encode(data)
    header = decode_header(encode_header(content, 3, 5, SESSION, 17))
    assert (header.uid, header.to, header.session, header.sequence) == (3, 5, SESSION, 17)
    return decode(header.tree, content.body)


def same(one, other) -> bool:
    if isinstance(one, (np.ndarray, np.generic)):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other, equal_nan=True)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


arrays = st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)))
plain = st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=8)
leaves = plain | st.binary(max_size=30) | arrays | arrays.filter(lambda a: a.ndim == 0).map(lambda a: a[()])
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(st.integers() | st.text(max_size=3), max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(-5, 5), inner, max_size=3)
    ),
    max_leaves=8,
)
data_dicts = st.dictionaries(st.sampled_from(["params", "indices", "alpha", "seed", "iteration", "CHANNEL"]), values)


@settings(max_examples=250, deadline=None)
@given(data_dicts)
def test_round_trip(data):
    assert same(travel(data), data)


def test_what_the_sharing_classes_send():
    torch = pytest.importorskip("torch")
    sent = {
        "params": torch.arange(6, dtype=torch.float32, requires_grad=True).reshape(2, 3).t(),
        "fft": np.fft.rfft(np.arange(9.0)).astype(np.complex64),
        "indices": np.array([1, 5, 9], dtype=">i4"),
        "compressed": bytearray(b"fpz\0data"),
        "strided": np.arange(10)[::3],
        "alpha": np.float64(0.1),
        "seed": 2**63 + 5,
        "send_partial": True,
        "NEIGHBORS": {1, 2, 7},
        4: {"nested": [np.int64(3), (None, "x")]},
        "loss": float("nan"),
    }
    got = travel(sent)
    assert got["params"].flags.writeable
    assert got["params"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert got["params"].dtype == np.float32
    assert same(got["fft"], sent["fft"])
    assert got["indices"].dtype == np.int32
    assert got["indices"].tolist() == [1, 5, 9]
    assert got["compressed"] == b"fpz\0data"
    assert got["strided"].tolist() == [0, 3, 6, 9]
    for name in ("alpha", "seed", "send_partial", "NEIGHBORS", 4, "loss"):
        assert same(got[name], sent[name]), name


@pytest.mark.parametrize("value", [object(), np.array([object()]), np.array(["text"]), 10**50, {(1, 2): 3}, 1j])
def test_other_types_are_refused_by_the_sender(value):
    with pytest.raises(TypeError):
        encode({"value": value})


def test_endless_nesting_is_refused_by_the_sender():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="nested"):
        encode({"loop": loop})


def test_pickled_bytes_are_refused_by_the_sender():
    """The framework's quantizing compressors pickle; their receivers would unpickle."""
    with pytest.raises(InputError, match="'params' holds pickled bytes"):
        encode({"params": pickle.dumps((0.5, np.arange(5, dtype=np.uint8)))})
    assert travel({"params": b"\x80\x04 looks like one."}) == {"params": b"\x80\x04 looks like one."}


def test_long_plain_lists_are_refused_by_the_sender():
    with pytest.raises(InputError, match="NumPy"):
        encode_header(encode({"x": list(range(10**6))}), 0, 1, SESSION, 1)
    with pytest.raises(InputError, match="arrays"):
        encode({"x": [np.zeros(1)] * (messages.ARRAY_LIMIT + 1)})


def receive(header: bytes, body: bytes) -> object:
    """What a receiver does; None when the message is refused."""
    try:
        return decode(decode_header(header).tree, body)
    except MalformedMessage:
        return None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_random_bytes_are_refused(header, body):
    assert receive(header, body) is None
    good = encode(MODEL)
    assert receive(encode_header(good, 3, 5, SESSION, 1), body) is None


@settings(max_examples=400, deadline=None)
@given(data_dicts, st.data())
def test_mutated_messages_never_raise_anything_else(data, draw):
    content = encode(data)
    frames = [encode_header(content, 3, 5, SESSION, 1), content.body]
    which = draw.draw(st.integers(0, 1))
    frame = bytearray(frames[which])
    for _ in range(draw.draw(st.integers(1, 4))):
        start = draw.draw(st.integers(0, len(frame)))
        end = draw.draw(st.integers(start, min(len(frame), start + 6)))
        frame[start:end] = draw.draw(st.binary(max_size=6) | st.sampled_from([b"[", b'"', b"]", b"0", b"9" * 60, b"-"]))
    frames[which] = bytes(frame)
    receive(*frames)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from([*"abcdflnst", "nan"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(json_values, json_values, st.sampled_from(["format", "uid", "to", "session", "sequence"]))
def test_valid_json_of_the_wrong_kind_never_raises_anything_else(tree, value, key):
    good = encode(MODEL)
    header = json.loads(encode_header(good, 3, 5, SESSION, 1))
    receive(json.dumps(header | {"data": tree}).encode(), good.body)
    receive(json.dumps(header | {key: value}).encode(), good.body)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 500_000,
        b"1" * 500_000,
        b" " * (messages.HEADER_LIMIT + 1),
        b"NaN",
        b"null",
        b"{}",
        b"\xff\xfe",
        b'{"format":1,"uid":true,"to":5,"session":[1,"0123456789abcdef"],"sequence":1,"data":["d"]}',
        b'{"format":1,"uid":3,"to":5,"session":[1,"0123456789abcdef"],"sequence":0,"data":["d"]}',
        b'{"format":1,"uid":3,"to":5,"session":[1,"x"],"sequence":1,"data":["d"]}',
    ],
)
def test_bad_headers(header):
    with pytest.raises(MalformedMessage):
        decode_header(header)


@pytest.mark.parametrize(
    "tree",
    [
        5,
        ["l"],
        [],
        ["d", ["a"]],
        ["d", ["a", 1], ["a", 2]],
        ["d", [["l"], 1]],
        ["d", ["a", ["a", 7]]],
        ["d", ["a", ["a", "0"]]],
        ["d", ["a", ["b", 0]]],
        ["d", ["a", ["c", 0]]],
        ["d", ["a", ["z", 0]]],
        ["d", ["a", ["f", "1e999"]]],
        ["d", ["a", ["s", ["l"]]]],
        ["d", ["a", ["n", 3]]],
        ["d", ["a", {"b": 1}]],
        ["d", ["a", ["a", 0]], ["b", ["a", 0]]],
        ["d"],
    ],
)
def test_bad_trees(tree):
    with pytest.raises(MalformedMessage):
        decode(tree, encode({"x": np.zeros(3)}).body)


def test_bad_bodies():
    def body(index: dict[str, object], data: bytes = b"") -> bytes:
        text = json.dumps(index).encode()
        return struct.pack("<Q", len(text)) + text + data

    tree = ["d", ["x", ["a", 0]]]
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert decode(tree, body({"0": entry}, bytes(8)))["x"].tolist() == [0, 0]
    for wrong in (
        body({"0": entry}, bytes(4)),
        body({"0": entry}, bytes(9)),
        body({"0": entry | {"shape": [2**40, 2**40]}}, bytes(8)),
        body({"0": entry | {"shape": [-2]}}, bytes(8)),
        body({"0": entry | {"data_offsets": [8, 0]}}, bytes(8)),
        body({"0": entry | {"dtype": "O"}}, bytes(8)),
        body({"0": entry | {"dtype": "BF16", "shape": [4]}}, bytes(8)),
        body({"1": entry}, bytes(8)),
        struct.pack("<Q", 2**63),
        struct.pack("<Q", messages.HEADER_LIMIT + 1) + bytes(messages.HEADER_LIMIT + 1),
        b"\x80",
    ):
        with pytest.raises(MalformedMessage):
            decode(tree, wrong)


def test_a_pickle_is_never_carried_out(tmp_path):
    target = tmp_path / "executed"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        bomb = pickle.dumps(Bomb(target), protocol)
        good = encode(MODEL)
        header = encode_header(good, 3, 5, SESSION, 1)
        text = bomb.decode("latin-1")
        with pytest.raises(InputError) if protocol >= 2 else pytest.raises(AssertionError):
            encode({"params": bomb})
            raise AssertionError
        carried = encode({"params": np.frombuffer(bomb, dtype=np.uint8)})
        as_bytes = receive(
            json.dumps(json.loads(header) | {"data": ["d", ["params", ["b", 0]]]}).encode(), carried.body
        )
        assert as_bytes == {"params": bomb}
        for frames in (
            (bomb, good.body),
            (header, bomb),
            (header, good.body + bomb),
            (bomb + header, good.body),
            (header, struct.pack("<Q", len(bomb)) + bomb),
            (header.replace(b"DPSGD", json.dumps(text).encode()), good.body),
        ):
            assert receive(*frames) is None
        for key in ("uid", "to", "session", "sequence", "data"):
            assert receive(json.dumps(json.loads(header) | {key: text}).encode(), good.body) is None
        assert travel({text: text}) == {text: text}
    assert not target.exists()
    pickle.loads(bomb)
    assert target.exists()


def test_a_message_is_encoded_once_for_all_neighbours():
    encoder = Encoder()
    data = dict(MODEL)
    first = encoder.encode(data)
    assert encoder.encode(data) is first
    assert encoder.encode(dict(data)) is not first
    first = encoder.encode(data)
    data["degree"] = 7
    second = encoder.encode(data)
    assert second is not first
    assert decode(second.tree, second.body)["degree"] == 7
    data["params"] = data["params"] + 1
    assert decode(encoder.encode(data).tree, encoder.encode(data).body)["params"][0] == 1
    hello = {"HELLO": 1}
    assert encoder.encode(hello) is not encoder.encode(hello)


def test_model_bytes_are_told_from_the_rest():
    content = encode({"indices": np.zeros(5, np.int32), "params": [np.zeros(10, np.float32), b"abc"], "x": np.zeros(9)})
    assert content.params_bytes == 43


def test_replays():
    guard = ReplayGuard()
    later = Session(SESSION.start_ns + 1, "f" * 16)
    assert [guard.refusal(3, SESSION, n) for n in (1, 2, 5, 4)] == [None] * 4
    assert [guard.refusal(3, SESSION, n) for n in (1, 5, 4, 2)] == [REPLAYED] * 4
    assert guard.refusal(4, SESSION, 1) is None
    assert guard.refusal(3, SESSION, 3) is None
    assert guard.refusal(3, SESSION, 5000) is None
    assert guard.refusal(3, SESSION, 5000 - ReplayGuard.WINDOW) == REPLAYED
    assert guard.refusal(3, SESSION, 5001 - ReplayGuard.WINDOW) is None
    assert guard.refusal(3, later, 1) is None
    assert guard.refusal(3, SESSION, 6000) == OLD_SESSION
    assert guard.refusal(3, Session(later.start_ns, "0" * 16), 7000) == OLD_SESSION


@given(st.lists(st.integers(1, 40), max_size=200))
def test_each_sequence_number_is_admitted_once(sequence):
    guard = ReplayGuard()
    admitted = [number for number in sequence if guard.refusal(0, SESSION, number) is None]
    assert sorted(admitted) == sorted(set(sequence))
