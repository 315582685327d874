"""SecureTCP against the real framework: the interface of its TCP, the messages of its sharing classes."""

from __future__ import annotations

import inspect
import random
import socket

import numpy as np
import pytest

pytest.importorskip("decentralizepy")

from decentralizepy.communication.TCP import TCP
from decentralizepy.mappings.Linear import Linear

from skiptrain_plugin.communication import SecureTCP
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.wire.keys import make_keys


def free_offset(ports: int) -> int:
    """An offset after which the ports 1 … ``ports`` are free on loopback."""
    for _ in range(100):
        offset = random.randrange(20_000, 32_000)
        try:
            for port in range(1, ports + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", offset + port))
        except OSError:
            continue
        return offset
    raise AssertionError("no free ports")


@pytest.fixture
def options(tmp_path):
    make_keys(tmp_path / "keys", [range(4)])
    (tmp_path / "ip.json").write_text('{"0": "127.0.0.1", "1": "127.0.0.2"}')
    return {
        "addresses_filepath": str(tmp_path / "ip.json"),
        "offset": free_offset(4),
        "keys": str(tmp_path / "keys"),
    }


@pytest.fixture
def four(options):
    """Two machines with two nodes each, all connected."""
    mapping = Linear(2, 2)
    nodes = [SecureTCP(rank, machine, mapping, 4, **options) for machine in range(2) for rank in range(2)]
    for node in nodes:
        for other in range(4):
            if other != node.uid:
                node.init_connection(other)
    yield nodes
    for node in nodes:
        node.terminate()


def test_it_has_the_interface_of_tcp():
    for name in ("addr", "init_connection", "destroy_connection", "already_connected", "receive"):
        ours, theirs = (inspect.signature(getattr(one, name)).parameters for one in (SecureTCP, TCP))
        assert list(ours) == list(theirs), name
        assert [p.default for p in ours.values()] == [p.default for p in theirs.values()], name
    ours, theirs = (inspect.signature(one.__init__).parameters for one in (SecureTCP, TCP))
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(ours[name].default == theirs[name].default for name in theirs)
    assert list(inspect.signature(SecureTCP.send).parameters) == ["self", "uid", "data"]


def test_everybody_talks_to_everybody(four, options):
    assert [node.uid for node in four] == [0, 1, 2, 3]
    assert four[3].addr(1, 1) == f"tcp://127.0.0.2:{options['offset'] + 3}"
    params = np.random.default_rng(0).standard_normal(89_834).astype(np.float32)
    for node in four:
        message = {"params": params + node.uid, "degree": 3, "iteration": 0, "CHANNEL": "DPSGD"}
        for other in range(4):
            if other != node.uid:
                node.send(other, message)
    for node in four:
        received = dict(node.receive() for _ in range(3))
        assert sorted(received) == [uid for uid in range(4) if uid != node.uid]
        for uid, message in received.items():
            assert np.array_equal(message["params"], params + uid)
            assert list(message) == ["params", "degree", "iteration", "CHANNEL"]
        assert node.receive(block=False) is None
        assert node.total_data == 3 * 4 * 89_834
        assert 0 < node.total_meta < 3000
        assert node.total_bytes == node.total_data + node.total_meta
        assert not node.dropped
    assert four[0].already_connected(1)
    four[0].destroy_connection(1)
    assert not four[0].already_connected(1)


def test_the_messages_of_the_sharing_classes(four):
    """Compressed and partial models as the framework's own classes make them."""
    torch = pytest.importorskip("torch")
    compression = []
    for module, name in (("Elias", "Elias"), ("EliasFpzip", "EliasFpzip"), ("Lz4Wrapper", "Lz4Wrapper")):
        try:
            package = __import__(f"decentralizepy.compression.{module}", fromlist=[name])
        except ImportError:
            continue
        compression.append(getattr(package, name)())
    values = torch.linspace(-1, 1, 500).numpy()
    for compressor in compression:
        indices = np.arange(0, 1000, 2, dtype=np.int32)
        message = {
            "alpha": 0.5,
            "params": compressor.compress_float(values),
            "indices": compressor.compress(indices.copy()),
            "send_partial": True,
            "iteration": 1,
        }
        four[0].send(1, message)
        sender, got = four[1].receive()
        assert sender == 0
        assert got["send_partial"] is True
        assert np.allclose(compressor.decompress_float(got["params"]), values)
        assert np.array_equal(compressor.decompress(got["indices"]), indices)
    from decentralizepy.compression.Quantization import Quantization

    with pytest.raises(InputError, match="pickled"):
        four[0].send(1, {"params": Quantization(float_precision=7).compress_float(values), "iteration": 1})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keys": ""}, "skiptrain keys"),
        ({"keys": "/nowhere"}, "does not exist"),
        ({"addresses_filepath": "/nowhere"}, "does not exist"),
        ({"offset": "many"}, "offset 'many' is not a number"),
        ({"max_message_mb": -1}, "max_message_mb"),
    ],
)
def test_bad_options(options, change, words):
    with pytest.raises(InputError, match=words):
        SecureTCP(0, 0, Linear(2, 2), 4, **options | change)


def test_options_may_be_text_and_every_node_needs_a_key(options):
    node = SecureTCP(0, 0, Linear(2, 2), 4, **options | {"offset": str(options["offset"]), "recv_timeout": "10"})
    assert node.receive(block=False) is None
    node.terminate()
    with pytest.raises(InputError, match="no key for 2 of 6 nodes"):
        SecureTCP(0, 0, Linear(2, 3), 6, **options)
