"""Key files: private from the first moment, checked when read, never printed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest
import zmq
from click.testing import CliRunner

from skiptrain_plugin.cli.keys import keys
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.wire.keys import load_keys, make_keys, read_public

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path):
    make_keys(tmp_path / "keys", [range(3)])
    return tmp_path / "keys"


def test_made_and_loaded(folder):
    ring = load_keys(folder, 1)
    assert sorted(ring.public) == [0, 1, 2]
    assert zmq.curve_public(ring.secret.encode()).decode() == ring.public[1]
    assert ring.secret not in repr(ring)
    assert sorted(path.name for path in folder.iterdir()) == [
        "node-0.secret",
        "node-1.secret",
        "node-2.secret",
        "public.json",
    ]
    assert all(load_keys(folder, uid).secret not in (folder / "public.json").read_text() for uid in range(3))


@posix
def test_permissions_from_the_moment_of_creation(tmp_path, monkeypatch):
    opened = {}
    real = os.open

    def spy(path, flags, *rest, **named):
        descriptor = real(path, flags, *rest, **named)
        if str(path).endswith(".secret"):
            opened[os.path.basename(path)] = (flags & os.O_EXCL, stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    before = os.umask(0)
    try:
        make_keys(tmp_path / "a" / "keys", [range(2), range(2, 4)])
    finally:
        os.umask(before)
    assert set(opened.values()) == {(os.O_EXCL, 0o600)}
    folder = tmp_path / "a" / "keys"
    assert mode(folder) == mode(folder / "machine-0") == 0o700
    assert {mode(path) for path in folder.rglob("*.secret")} == {0o600}


def test_existing_keys_are_kept(folder, tmp_path):
    before = load_keys(folder, 0)
    with pytest.raises(InputError, match="already holds keys"):
        make_keys(folder, [range(3)])
    assert load_keys(folder, 0) == before
    make_keys(folder, [range(2)], force=True)
    assert load_keys(folder, 0) != before
    assert not (folder / "node-2.secret").exists()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        make_keys(folder, [range(2)], force=True)
    assert (folder / "thesis.tex").exists()
    (tmp_path / "empty").mkdir()
    make_keys(tmp_path / "empty", [range(1)])
    assert load_keys(tmp_path / "empty", 0).uid == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "keys"]


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("skiptrain_plugin.wire.keys._create", full)
    with pytest.raises(InputError, match="No space"):
        make_keys(tmp_path / "keys", [range(2)])
    assert list(tmp_path.iterdir()) == []


@posix
@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_secrets_open_to_others_are_refused(folder, open_to):
    (folder / "node-1.secret").chmod(open_to)
    with pytest.raises(InputError, match="chmod 600"):
        load_keys(folder, 1)
    load_keys(folder, 0)


def test_refusals(folder):
    secret = load_keys(folder, 0).secret

    def refuse(match: str, uid: int = 0) -> None:
        with pytest.raises(InputError, match=match) as caught:
            load_keys(folder, uid)
        assert secret not in str(caught.value)

    refuse("no key for node 3", 3)
    (folder / "node-1.secret").unlink()
    refuse("does not exist", 1)
    (folder / "node-1.secret").mkdir()
    refuse("cannot be read", 1)
    (folder / "node-0.secret").write_text(secret[:-1])
    refuse("does not hold a key")
    (folder / "node-0.secret").write_text(secret[:-1] + "~")
    refuse("does not hold a key")
    (folder / "node-0.secret").write_bytes(b"\xff" * 40)
    refuse("does not hold a key")
    (folder / "node-0.secret").write_text("#" * 40)
    refuse("does not hold a key")
    (folder / "node-0.secret").write_text(load_keys(folder, 2).secret)
    refuse("does not belong to the public key")
    with pytest.raises(InputError, match="names no directory"):
        load_keys("", 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "not json",
        lambda text: "[" * 100_000,
        lambda text: "[]",
        lambda text: text.replace("keys 1", "keys 2"),
        lambda text: text.replace('"0"', '"zero"'),
        lambda text: text.replace('"0"', '"00"'),
        lambda text: json.dumps(json.loads(text) | {"nodes": {"0": 5}}),
        lambda text: json.dumps(json.loads(text) | {"nodes": {"0": "short"}}),
        lambda text: json.dumps(json.loads(text) | {"nodes": dict.fromkeys("01", json.loads(text)["nodes"]["0"])}),
    ],
)
def test_bad_public_files(folder, change):
    path = folder / "public.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=r"public\.json"):
        read_public(path)


def test_the_command(tmp_path):
    out = tmp_path / "keys"
    runner = CliRunner()
    result = runner.invoke(keys, ["--nodes", "4", "--machines", "2", "--services", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "wrote keys of 5 nodes" in result.output
    for path in out.rglob("*.secret"):
        assert path.read_text().strip() not in result.output
    assert sorted(p.name for p in (out / "machine-0").iterdir()) == [
        "node--1.secret",
        "node-0.secret",
        "node-1.secret",
        "public.json",
    ]
    assert load_keys(out / "machine-1", 3) == load_keys(out, 3)
    with pytest.raises(InputError, match="does not exist"):
        load_keys(out / "machine-1", 0)
    again = runner.invoke(keys, ["--nodes", "4", "--out", str(out)])
    assert isinstance(again.exception, InputError)
    assert runner.invoke(keys, ["--nodes", "4", "--out", str(out), "--force"]).exit_code == 0
    assert not (out / "machine-0").exists()
    uneven = runner.invoke(keys, ["--nodes", "5", "--machines", "2", "--out", str(tmp_path / "other")])
    assert isinstance(uneven.exception, InputError)
    assert not (tmp_path / "other").exists()


def test_only_the_plugin_module_needs_the_framework():
    code = """
import sys
sys.modules["decentralizepy"] = None
import skiptrain_plugin.cli.keys, skiptrain_plugin.wire.endpoint, skiptrain_plugin.wire.addresses
assert "torch" not in sys.modules
try:
    import skiptrain_plugin.communication
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "github.com/sacs-epfl/decentralizepy" in result.stdout
    assert len(result.stdout.splitlines()) == 1
