"""LEAF folders: converted exactly, kept compact, and refused with file and place when something is wrong."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skiptrain_plugin import data
from skiptrain_plugin.data.leaf import read_leaf
from skiptrain_plugin.data.tensors import gather, to_input
from skiptrain_plugin.errors import InputError
from tests.data_problems import cache, leaf, leftovers

__all__ = ["cache"]

SCALE = 255.0


def image(seed: int) -> list[float]:
    return (np.random.default_rng(seed).integers(0, 256, 784) / SCALE).tolist()


def user(*labels: int) -> tuple[list[list[float]], list[int]]:
    return [image(label) for label in labels], list(labels)


TRAIN = {
    "a_first.json": leaf({"u2": user(5, 6), "u1": user(61)}),
    "b_second.json": leaf({"u3": user(7, 8, 9)}),
}
TEST = {"z.json": leaf({"u1": user(1, 2)}), "y.json": leaf({"u3": user(3)})}


def write(folder: Path, train: dict[str, Any] = TRAIN, test: dict[str, Any] = TEST) -> tuple[str, str]:
    for part, files in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / part / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / "train"), str(folder / "test")


def test_converted_once_in_file_order(cache: Path, tmp_path: Path) -> None:
    train, test = write(tmp_path / "leaf")
    found = data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)
    assert not found.generated
    assert found.title == "FEMNIST"
    assert found.writers == ("u2", "u1", "u3")
    assert found.train_writer is not None
    assert found.train_writer.tolist() == [0, 0, 1, 2, 2, 2]
    assert found.train_y.tolist() == [5, 6, 61, 7, 8, 9]
    assert found.test_y.tolist() == [3, 1, 2]  # y.json before z.json
    assert found.train_x.dtype == np.uint8
    assert found.train_x.shape == (6, 28, 28, 1)
    assert isinstance(found.train_x, np.memmap)
    expected = torch.tensor([image(label) for label in found.train_y.tolist()]).reshape(-1, 1, 28, 28)
    assert torch.equal(to_input(gather(found.train_x), found), expected)
    (kept,) = leftovers(cache)
    assert data.load("femnist", seed=1, train_dir=train, test_dir=test).digest == found.digest
    assert leftovers(cache) == [kept]
    assert sorted(map(len, data.deal(found, "writer", 2, 90))) == [2, 3]


def test_changed_sources_are_converted_anew(cache: Path, tmp_path: Path) -> None:
    train, test = write(tmp_path / "leaf")
    first = data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)
    write(tmp_path / "leaf", train={"c.json": leaf({"u9": user(4)})})
    second = data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)
    assert len(second.train_y) == len(first.train_y) + 1
    assert len(leftovers(cache)) == 2


def test_floats_that_are_no_bytes_stay_floats(cache: Path, tmp_path: Path) -> None:
    odd = copy.deepcopy(TRAIN)
    odd["b_second.json"]["user_data"]["u3"]["x"][1][700] = 0.1234567
    train, test = write(tmp_path / "leaf", odd)
    found = data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)
    assert found.train_x.dtype == found.test_x.dtype == np.float32
    expected = torch.tensor([image(label) for label in found.train_y.tolist()]).reshape(-1, 1, 28, 28)
    expected[4, 0].flatten()[700] = 0.1234567
    assert torch.equal(to_input(gather(found.train_x), found), expected)


def test_found_in_the_cache_folder(cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match=f"looked for {cache}/femnist.*LEAF"):
        data.load("femnist", seed=0)
    with pytest.raises(InputError, match="both train_dir and test_dir"):
        data.load("femnist", seed=0, train_dir=str(tmp_path))
    write(cache / "femnist")
    assert [line.present for line in data.listing() if line.name == "femnist"] == [True]
    found = data.load("femnist", seed=0, progress=False)
    assert len(found.writers) == 3
    elsewhere = data.load("femnist", seed=0, train_dir="/nowhere/train", test_dir="/nowhere/test")
    assert elsewhere.digest == found.digest
    assert "/nowhere/train" in caplog.text
    assert data.check("femnist").sound


def test_file_of_one_user_with_a_plain_number(tmp_path: Path) -> None:
    content = {**leaf({"u": user(3, 4)}), "num_samples": 2}
    path = tmp_path / "u.json"
    path.write_text(json.dumps(content))
    assert [writer.y.tolist() for writer in read_leaf(path)] == [[3, 4]]


def test_order_of_users_and_of_user_data(tmp_path: Path) -> None:
    content = leaf({"u": user(3), "v": user(4)})
    content["users"] = ["v", "u"]
    path = tmp_path / "u.json"
    path.write_text(json.dumps(content))
    assert [writer.name for writer in read_leaf(path)] == ["v", "u"]
    assert [writer.name for writer in read_leaf(path, in_file_order=True)] == ["u", "v"]


def changed(*place: Any, value: Any = None) -> dict[str, Any]:
    """A file of users u (labels 3, 4) and v (5) with the thing at ``place`` replaced, or removed if None."""
    content: Any = leaf({"u": user(3, 4), "v": user(5)})
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if value is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return content


NAN = float("nan")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON at line 1, column 1"),
        ('{"users": ["u"],\n "num_samples": [1', "not JSON at line 2"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a LEAF file"),
        (changed("users"), "the key 'users' is missing"),
        (changed("num_samples"), "the key 'num_samples' is missing"),
        (changed("user_data"), "the key 'user_data' is missing"),
        (changed("users", value="uv"), "'users' must be a list of names"),
        (changed("users", value=["u", 7]), "'users' must be a list of names"),
        (changed("users", value=["u", "v\n"]), "line break"),
        (changed("users", value=["u", "u", "v"]), "user 'u' is in 'users' twice"),
        (changed("users", value=["u", "w"]), "user 'v' is in 'user_data' but not in 'users'"),
        (changed("user_data", "v"), "user 'v' is in 'users' but not in 'user_data'"),
        (changed("user_data", value=[1]), "'user_data' must be an object"),
        ('{"users": [], "num_samples": [], "user_data": {"u": 1, "u": 2}}', "the key 'u' is there twice"),
        (changed("num_samples", value=[2]), "'num_samples' must hold 2 numbers"),
        (changed("num_samples", value=[2, 2]), "user 'v': num_samples says 2, but there are 1"),
        (changed("user_data", "v", value=[]), "user 'v': an object with x and y"),
        (changed("user_data", "v", "x"), "user 'v': the key 'x' is missing"),
        (changed("user_data", "v", "y"), "user 'v': the key 'y' is missing"),
        (changed("user_data", "v", "y", value=5), "user 'v': 'y' must be a list"),
        (changed("user_data", "u", "y", value=[3]), "user 'u': 2 images in x but 1 labels"),
        (
            changed("user_data", "u", "y", 1, value=62),
            r"user 'u': y\[1\] is 62, not a label between 0 and 61",
        ),
        (changed("user_data", "u", "y", 1, value=-1), r"y\[1\] is -1"),
        (changed("user_data", "u", "y", 1, value="4"), r'y\[1\] is "4"'),
        (changed("user_data", "u", "y", 1, value=True), r"y\[1\] is true"),
        (changed("user_data", "u", "y", 1, value=4.0), r"y\[1\] is 4.0"),
        (changed("user_data", "u", "x", 1, value=[0.5] * 783), r"x\[1\] is 783 values, not a list of 784"),
        (changed("user_data", "u", "x", 1, value="dark"), r'x\[1\] is "dark", not a list of 784'),
        (changed("user_data", "u", "x", 1, 9, value="1"), r'x\[1\]\[9\] is "1", not a finite number'),
        (changed("user_data", "u", "x", 1, 9, value=[1]), r"x\[1\]\[9\] is \[1\]"),
        (changed("user_data", "u", "x", 1, 9, value=NAN), r"x\[1\]\[9\] is NaN"),
        (changed("user_data", "u", "x", 1, 9, value=1e300), r"x\[1\]\[9\] is 1e\+300"),
        (changed("user_data", "u", "x", 1, 9, value=10**400), r"x\[1\]\[9\] is 1000.*\.\.\."),
        (leaf({}), "hold no sample"),
        (leaf({"u": ([], [])}), "hold no sample"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(cache: Path, tmp_path: Path, content: Any, message: str) -> None:
    train, test = write(tmp_path / "leaf", {"bad.json": content})
    with pytest.raises(InputError, match=message) as raised:
        data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)
    assert train in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert leftovers(cache) == []


def test_folder_without_json_and_user_in_two_files(cache: Path, tmp_path: Path) -> None:
    train, test = write(tmp_path / "one", {"notes.txt": "nothing"})
    with pytest.raises(InputError, match=r"train: there is no .json file"):
        data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)
    train, test = write(tmp_path / "two", {"a.json": leaf({"u": user(1)}), "b.json": leaf({"u": user(2)})})
    with pytest.raises(InputError, match=r"b.json: user 'u' is also in .*a.json"):
        data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)


def test_bytes_that_are_no_text(cache: Path, tmp_path: Path) -> None:
    train, test = write(tmp_path / "leaf")
    (Path(train) / "c.json").write_bytes(b'{"users": ["\xff\xfe"]}')
    with pytest.raises(InputError, match="c.json: not JSON"):
        data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)
    (Path(train) / "c.json").unlink()
    (Path(train) / "c.json").mkdir()
    with pytest.raises(InputError, match="c.json: cannot be read"):
        data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)


def read_or_refused(path: Path) -> bool:
    """True when the file is read, or refused with an error that names it."""
    try:
        read_leaf(path)
    except InputError as error:
        return os.fspath(path) in str(error)
    return True


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("uvxy"), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["users", "num_samples", "user_data"]), json_values))
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("leaf") / "any.json"
    path.write_text(json.dumps(content))
    assert read_or_refused(path)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 20_000), st.binary(min_size=1, max_size=3))
def test_any_damage_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    whole = json.dumps(TRAIN["a_first.json"]).encode()
    path = tmp_path_factory.mktemp("leaf") / "any.json"
    path.write_bytes(whole[: at % len(whole)] + junk + whole[at % len(whole) + len(junk) :])
    assert read_or_refused(path)


@pytest.mark.parametrize("nodes", [2, 3])
def test_same_arrays_as_the_frameworks_class(cache: Path, tmp_path: Path, nodes: int) -> None:
    """The framework's Femnist on a folder with one file a writer for the writers with most samples."""
    femnist = pytest.importorskip("decentralizepy.datasets.Femnist")
    linear = pytest.importorskip("decentralizepy.mappings.Linear")
    train, test = write(tmp_path / "leaf", test={"z.json": leaf({f"t{i}": user(i, i + 1) for i in range(8)})})
    found = data.load("femnist", seed=0, train_dir=train, test_dir=test, progress=False)
    everyone = {"u2": user(5, 6), "u1": user(61), "u3": user(7, 8, 9)}
    largest = sorted(everyone, key=lambda name: -len(everyone[name][1]))[:nodes]
    single, _ = write(tmp_path / "single", {f"{name}.json": leaf({name: everyone[name]}) for name in largest})
    parts = data.deal(found, "writer", nodes, 90)
    validation, rest = data.validation(found, 0.5, 90)
    for rank in range(nodes):
        np.random.seed(90)
        theirs = femnist.Femnist(
            rank,
            0,
            linear.Linear(1, nodes),
            random_seed=90,
            train_dir=single,
            test_dir=test,
            validation_source="Test",
            validation_size=0.5,
        )
        ours = to_input(gather(found.train_x, parts[rank]), found)
        assert np.array_equal(theirs.train_x, ours.numpy())
        assert np.array_equal(theirs.train_y, found.train_y[parts[rank]])
        assert np.array_equal(theirs.validation_x, to_input(gather(found.test_x, validation), found).numpy())
        assert np.array_equal(theirs.test_y, found.test_y[rest])
