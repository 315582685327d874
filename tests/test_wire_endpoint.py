"""Nodes on loopback: they talk, strangers get nothing and disturb nobody, liars and replays are dropped."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import random
import socket
import struct
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import zmq

from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.wire import endpoint as module
from skiptrain_plugin.wire.addresses import endpoint as address_of
from skiptrain_plugin.wire.addresses import read_addresses, warn_if_exposed
from skiptrain_plugin.wire.endpoint import QUEUE_FULL, WRONG_RECEIVER, WRONG_SENDER, Endpoint
from skiptrain_plugin.wire.gate import NO_HANDSHAKE, UNKNOWN_KEY
from skiptrain_plugin.wire.keys import KeyRing, load_keys, make_keys
from skiptrain_plugin.wire.messages import MALFORMED, OVERSIZED, encode, encode_header
from skiptrain_plugin.wire.sessions import OLD_SESSION, REPLAYED, Session
from tests.test_wire_messages import Bomb

ANY_PORT = "tcp://127.0.0.1:0"
MODEL = {"params": np.arange(1000, dtype=np.float32), "iteration": 3, "CHANNEL": "DPSGD"}
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("wire") / "keys"
    make_keys(path, [range(6)])
    return path


@pytest.fixture
def node(folder):
    """Makes nodes that listen, and closes them in the end."""
    made: list[Endpoint] = []

    def make(uid: int, **options) -> Endpoint:
        made.append(Endpoint(load_keys(folder, uid), options.pop("address", ANY_PORT), recv_timeout=20, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Raw:
    """Sends any frames with any keys."""

    def __init__(self, ring: KeyRing | None, receiver: Endpoint, server_key: str = "") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUSH if ring else zmq.DEALER)
        self.socket.linger = 0
        self.events = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        if ring is not None:
            self.socket.curve_publickey = ring.public[ring.uid].encode()
            self.socket.curve_secretkey = ring.secret.encode()
            self.socket.curve_serverkey = (server_key or ring.public[receiver.uid]).encode()
        self.socket.connect(receiver.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.disable_monitor()
        self.events.close(linger=0)
        self.socket.close()
        self.context.term()

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)


def take(node: Endpoint, seconds: float = 5):
    """The next message within ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (message := node.receive(block=False)) is not None:
            return message
    return None


def until(condition, node: Endpoint | None = None, seconds: float = 5) -> None:
    """Waits for ``condition``; ``node`` must not receive anything meanwhile."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, node.dropped if node else ""
        if node is None:
            time.sleep(0.01)
        else:
            assert node.receive(block=False) is None


def resident() -> int:
    """Resident memory of this process in bytes."""
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("needs /proc")
    gc.collect()
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def framed(sequence: int, *, uid: int = 1, to: int = 0, session: Session | None = None, data=None):
    content = encode(data or MODEL)
    return encode_header(content, uid, to, session or Session(time.time_ns(), "0" * 16), sequence), content.body


def test_two_nodes_talk(node):
    a, b = node(0), node(1)
    a.connect(1, b.address)
    b.connect(0, a.address)
    assert a.connected(1)
    assert not a.connected(2)
    for sender, receiver in ((a, b), (b, a)):
        for iteration in range(5):
            content = encode(MODEL | {"iteration": iteration})
            assert sender.send(receiver.uid, content) > 4000
            uid, data = take(receiver)
            assert uid == sender.uid
            assert data["iteration"] == iteration
            assert np.array_equal(data["params"], MODEL["params"])
    start = time.monotonic()
    assert a.receive(block=False) is None
    assert time.monotonic() - start < 1
    a.disconnect(1)
    with pytest.raises(RunError, match="not connected"):
        a.send(1, encode({}))
    assert not a.dropped
    assert not b.dropped


def test_the_listener_may_come_later_and_last_messages_leave(node, folder):
    first = node(1)
    address = first.address
    first.close()
    sender = Endpoint(load_keys(folder, 0), ANY_PORT)
    sender.connect(1, address)
    sender.send(1, encode({"HELLO": 0}))
    closer = threading.Thread(target=sender.close)
    closer.start()
    late = node(1, address=address)
    assert take(late) == (0, {"HELLO": 0})
    closer.join(timeout=5)
    assert not closer.is_alive()


def test_the_address_is_in_use(node, folder):
    taken = node(0)
    with pytest.raises(InputError, match="cannot listen on"):
        Endpoint(load_keys(folder, 1), taken.address)


@pytest.mark.parametrize("options", [{"max_message_mb": 0}, {"max_message_mb": float("nan")}, {"recv_timeout": -1}])
def test_bad_options(folder, options):
    with pytest.raises(InputError):
        Endpoint(load_keys(folder, 0), ANY_PORT, **options)


def test_a_dead_neighbour_does_not_hold_up_the_sender(node, monkeypatch):
    monkeypatch.setattr(module, "_SEND_PATIENCE_MS", 200)
    monkeypatch.setattr(module, "_LINGER_MS", 100)
    a, b = node(0), node(1)
    address = b.address
    b.close()
    a.connect(1, address)
    content = encode(MODEL)
    start = time.monotonic()
    sent = [a.send(1, content) for _ in range(200)]
    assert time.monotonic() - start < 2
    assert sum(size > 0 for size in sent) <= 17
    assert a.dropped[QUEUE_FULL] == sum(size == 0 for size in sent) > 0
    back = node(1, address=address)
    assert take(back) is not None
    until(lambda: a.send(1, content) > 0)


# Strangers.


def attack_with_bytes(address: str, payload: bytes, wait: float = 0.5) -> bytes:
    """Sends raw bytes and returns the answer."""
    host, port = address.removeprefix("tcp://").split(":")
    got = b""
    with closing(socket.create_connection((host, int(port)), timeout=wait)) as connection:
        try:
            connection.sendall(payload)
            while part := connection.recv(4096):
                got += part
        except OSError:
            pass
    return got


def test_strangers_get_nothing_and_disturb_nobody(node, tmp_path, caplog):
    a, b = node(0), node(1)
    b.connect(0, a.address)
    b.send(0, encode({"n": 0}))
    assert take(a) == (1, {"n": 0})
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    rng = random.Random(0)
    payloads = [
        rng.randbytes(5000),
        b"GET / HTTP/1.1\r\n\r\n",
        bomb,
        GREETING + bomb,
        GREETING + b"\x04" + bytes([len(bomb) % 256]) + bomb,
        GREETING + b"\x06" + struct.pack(">Q", 2**31) + bytes(100_000),
        GREETING + b"\x02" + struct.pack(">Q", 2**63 - 1) + bytes(100_000),
        b"\x01\x00" + bomb,
        b"\xff" + struct.pack(">Q", 2**31) + bytes(100_000),
    ]
    caplog.set_level(logging.WARNING)
    attack_with_bytes(a.address, payloads[0])
    before = resident()
    for turn in range(5):
        for number, payload in enumerate(payloads):
            answer = attack_with_bytes(a.address, payload, wait=0.05)
            assert len(answer) <= 64, "more than ZeroMQ's greeting"
            b.send(0, encode({"n": number, "turn": turn}))
            assert take(a) == (1, {"n": number, "turn": turn})
    assert resident() - before < 16 * 2**20
    until(lambda: a.dropped[NO_HANDSHAKE] >= 5 * len(payloads) - 5, a)
    assert sum("no handshake" in record.message for record in caplog.records) == 1
    assert not (tmp_path / "executed").exists()


def test_a_2_gb_length_is_refused_at_once(node):
    a = node(0)
    start = time.monotonic()
    attack_with_bytes(a.address, GREETING + b"\x06" + struct.pack(">Q", 2**31), wait=5)
    assert time.monotonic() - start < 2


def test_a_silent_connection_is_closed(node, monkeypatch):
    monkeypatch.setattr(module, "_HANDSHAKE_MS", 300)
    a = node(0)
    start = time.monotonic()
    attack_with_bytes(a.address, b"", wait=5)
    assert time.monotonic() - start < 3
    until(lambda: a.dropped[NO_HANDSHAKE] == 1, a)


def test_an_unknown_key_gets_silence(node, folder):
    a, b = node(0), node(1)
    b.connect(0, a.address)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    ring = load_keys(folder, 1)
    stranger = KeyRing(1, {**ring.public, 1: public}, secret)
    with Raw(stranger, a) as raw, Raw(None, a) as plain, Raw(stranger, a, server_key=ring.public[2]) as blind:
        raw.send(*framed(1))
        plain.send(*framed(1))
        blind.send(*framed(1))
        until(lambda: a.dropped[UNKNOWN_KEY] >= 1, a)
        for turn in range(3):
            b.send(0, encode({"turn": turn}))
            assert take(a) == (1, {"turn": turn})
        assert a.receive(block=False) is None
        assert not raw.events.poll(100)
        assert not plain.events.poll(0)
        assert not plain.socket.poll(0)
    assert not {MALFORMED, WRONG_SENDER} & a.dropped.keys()


def test_a_node_with_other_keys_is_not_spoken_to(node, folder, tmp_path):
    """Who answers at a neighbour's address must hold the neighbour's key."""
    make_keys(tmp_path / "other", [range(2)])
    impostor = Endpoint(load_keys(tmp_path / "other", 1), ANY_PORT, recv_timeout=20)
    a = node(0)
    a.connect(1, impostor.address)
    a.send(1, encode(MODEL))
    assert take(impostor, 0.5) is None
    a.disconnect(1, linger=0)
    impostor.close()


# Insiders.


def test_a_key_speaks_for_its_node_only(node, folder):
    a = node(0)
    with Raw(load_keys(folder, 3), a) as raw:
        raw.send(*framed(1, uid=5))
        raw.send(*framed(1, uid=3, to=2))
        raw.send(*framed(1, uid=3))
        assert take(a)[0] == 3
    assert a.dropped == {WRONG_SENDER: 1, WRONG_RECEIVER: 1}


def test_malformed_and_oversized_messages_are_dropped_and_counted(node, folder, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    a = node(0, max_message_mb=0.5)
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    header, body = framed(1)
    bad = [(bomb,), (bomb, bomb), (header, bomb), (header, body, b""), (b"",), (b"", b""), (b"{}", body)]
    with Raw(load_keys(folder, 1), a) as raw:
        for frames in bad:
            raw.send(*frames)
        raw.send(header, bytes(600_000))
        raw.send(*framed(2, data={"ok": 1}, session=Session(2**62, "1" * 16)))
        assert take(a) == (1, {"ok": 1})
        assert a.dropped == {MALFORMED: len(bad), OVERSIZED: 1}
        before = resident()
        raw.send(*framed(3, session=Session(2**62, "1" * 16), data={"x": np.zeros(2**23)}))
        assert take(a, 0.5) is None
        assert resident() - before < 80 * 2**20
        raw.send(*framed(4, data={"ok": 2}, session=Session(2**62, "1" * 16)))
        assert take(a) == (1, {"ok": 2})
    assert sum("(malformed), node 1" in record.message for record in caplog.records) == 1
    assert not (tmp_path / "executed").exists()


def test_too_large_a_message_is_not_even_sent(node):
    a, b = node(0, max_message_mb=0.5), node(1)
    a.connect(1, b.address)
    with pytest.raises(InputError, match="max_message_mb"):
        a.send(1, encode({"params": np.zeros(10**6)}))


def test_replays_are_dropped_and_a_restarted_node_is_taken_in(node, folder):
    a = node(0)
    old, new = Session.begin(), Session(time.time_ns() + 1, "1" * 16)
    recorded = [framed(number, session=old, data={"n": number}) for number in (1, 2, 3)]
    with Raw(load_keys(folder, 1), a) as raw:
        for frames in recorded:
            raw.send(*frames)
        assert [take(a)[1]["n"] for _ in recorded] == [1, 2, 3]
        for frames in recorded:
            raw.send(*frames)
        until(lambda: a.dropped[REPLAYED] == 3, a)
    with Raw(load_keys(folder, 1), a) as raw:
        raw.send(*framed(1, session=new, data={"restarted": True}))
        assert take(a) == (1, {"restarted": True})
        for frames in recorded:
            raw.send(*frames)
        raw.send(*framed(9, session=old))
        until(lambda: a.dropped[OLD_SESSION] == 4, a)
    assert a.dropped == {REPLAYED: 3, OLD_SESSION: 4}


def test_a_node_comes_back(node):
    a, b = node(0), node(1)
    for turn in range(3):
        b.connect(0, a.address)
        a.connect(1, b.address)
        b.send(0, encode({"turn": turn}))
        assert take(a) == (1, {"turn": turn})
        a.send(1, encode({"answer": turn}))
        assert take(b) == (0, {"answer": turn})
        address = b.address
        b.close()
        b = node(1, address=address)
    assert not a.dropped


def test_connecting_anew_loses_nothing(node):
    a, b = node(0), node(1)
    for turn in range(5):
        b.connect(0, a.address)
        for number in range(5):
            b.send(0, encode({"n": 5 * turn + number}))
    assert sorted(take(a)[1]["n"] for _ in range(25)) == list(range(25))
    assert not a.dropped


def test_a_flood_of_bad_messages_does_not_stop_a_receive_that_must_not_block(node, folder):
    a = node(0)
    with Raw(load_keys(folder, 1), a) as raw:
        raw.socket.sndtimeo = 100
        end = time.monotonic() + 1.5
        stop = threading.Event()

        def flood() -> None:
            while not stop.is_set():
                try:
                    raw.send(b"bad")
                except zmq.Again:
                    continue

        thread = threading.Thread(target=flood)
        thread.start()
        while time.monotonic() < end:
            start = time.monotonic()
            assert a.receive(block=False) is None
            assert time.monotonic() - start < 1
        stop.set()
        thread.join()
    assert a.dropped[MALFORMED] > 10


def test_closing_is_quick_and_leaves_no_thread_or_file(folder):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def once() -> None:
        a, b = (Endpoint(load_keys(folder, uid), ANY_PORT) for uid in (0, 1))
        a.connect(1, b.address)
        a.send(1, encode(MODEL))
        assert take(b)
        a.close()
        a.close()
        del b
        gc.collect()

    once()
    before, threads = descriptors(), threading.active_count()
    start = time.monotonic()
    for _ in range(5):
        once()
    assert time.monotonic() - start < 5
    until(lambda: threading.active_count() <= threads)
    assert descriptors() <= before


# Addresses.


def test_addresses(tmp_path):
    path = tmp_path / "ip.json"
    path.write_text('{"0": "127.0.0.1", "1": "127.0.0.2"}')
    addresses = read_addresses(path)
    assert address_of(addresses, 3, 1, 9000) == "tcp://127.0.0.2:9007"
    assert address_of(addresses, -1, 0, 9000) == "tcp://127.0.0.1:8999"
    with pytest.raises(InputError, match="no machine 2"):
        address_of(addresses, 0, 2, 9000)
    with pytest.raises(InputError, match="port"):
        address_of(addresses, 40_000, 0, 9000)
    for text in ("[]", "{", '{"0": 5}', '{"0": ""}'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"ip\.json"):
            read_addresses(path)


def test_the_frameworks_tcp_is_warned_about(caplog):
    caplog.set_level(logging.WARNING)
    assert not warn_if_exposed({"0": "127.0.0.1", "1": "127.0.0.2"}, 1)
    assert not caplog.records
    assert warn_if_exposed({"0": "192.0.2.7"}, 0)
    assert warn_if_exposed({"0": "0.0.0.0"}, 0)
    assert "192.0.2.7" in caplog.text
    assert "SecureTCP" in caplog.text
