"""Partitions and validation splits: by hand, as properties, and against the framework where it is there."""

from __future__ import annotations

import time
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skiptrain_plugin.data import deal, validation
from skiptrain_plugin.data.partitions import (
    by_writer,
    dirichlet,
    fractions,
    iid,
    kshard,
    simple,
    validation_split,
    validation_split_by_writer,
)
from skiptrain_plugin.errors import InputError
from tests.data_problems import tiny_data

counts = st.integers(20, 400)
seeds = st.integers(0, 2**31)


def labels_of(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 10, count).astype(np.uint8)


def lists(parts: list[np.ndarray]) -> list[list[int]]:
    assert all(part.dtype == np.int64 for part in parts)
    return [part.tolist() for part in parts]


def test_simple_by_hand() -> None:
    assert lists(simple(7, 3)) == [[0, 1], [2, 3], [4, 5, 6]]
    assert lists(simple(10, 2, sizes=[0.3, 0.5])) == [[0, 1, 2], [3, 4, 5, 6, 7]]


def test_iid_by_hand() -> None:
    order = list(range(6))
    Random(5).shuffle(order)
    assert lists(iid(6, 2, 5)) == [order[:3], order[3:]]


def test_kshard_by_hand() -> None:
    """Two nodes, two shards of one sample; a seed that draws the places 4, 1, 0, 2 of what is left each time.

    Labels 1 0 1 0 1 0 sorted: samples 1 3 5 0 2 4. Place 4 is sample 2, place 1 of 1 3 5 0 4 is sample 3,
    place 0 of 1 5 0 4 is sample 1, place 2 of 5 0 4 is sample 4.
    """
    draws = lambda rng: [rng.randint(0, last) for last in (5, 4, 3, 2)]  # noqa: E731
    seed = next(seed for seed in range(10_000) if draws(Random(seed)) == [4, 1, 0, 2])
    labels = np.array([1, 0, 1, 0, 1, 0], dtype=np.uint8)
    assert lists(kshard(labels, 2, 2, seed)) == [[2, 3], [1, 4]]


def test_kshard_wraps_around_the_end() -> None:
    seed = next(s for s in range(100) if Random(s).randint(0, 5) == 4)
    labels = np.array([0, 0, 1, 1, 2, 2], dtype=np.uint8)
    first, second = lists(kshard(labels, 2, 1, seed))
    assert first == [4, 5, 0]
    assert sorted(second) == [1, 2, 3]


def test_by_writer_by_hand() -> None:
    """Counts a 1, b 3, c 2, d 2: three nodes take b, c and d, files sorted by name and then shuffled."""
    owner = np.array([1, 2, 1, 3, 0, 2, 3, 1], dtype=np.int32)
    samples = {"b": [0, 2, 7], "c": [1, 5], "d": [3, 6]}
    order = ["b", "c", "d"]
    Random(90).shuffle(order)
    assert lists(by_writer(owner, ["a", "b", "c", "d"], 3, 90)) == [samples[name] for name in order]
    assert sorted(map(len, by_writer(owner, ["a", "b", "c", "d"], 2, 1))) == [2, 3]  # c before d: by name


def test_by_writer_sorts_as_file_names() -> None:
    """'a-b.json' comes before 'a.json' although 'a' comes before 'a-b'."""
    owner = np.array([0, 1], dtype=np.int32)
    seed = next(s for s in range(100) if (order := [0, 1]) and not Random(s).shuffle(order) and order == [0, 1])
    assert lists(by_writer(owner, ["a", "a-b"], 2, seed)) == [[1], [0]]


@pytest.mark.parametrize("nodes", [49, 98, 103])
def test_by_writer_gives_everyone_one_where_the_fraction_rounds_to_none(nodes: int) -> None:
    assert int((1 / nodes) * nodes) == 0
    parts = by_writer(np.arange(nodes, dtype=np.int32), [f"w{i:03d}" for i in range(nodes)], nodes, 1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(nodes))


@settings(max_examples=60, deadline=None)
@given(counts, st.integers(1, 9), st.integers(1, 2), seeds)
def test_parts_are_disjoint_and_repeatable(count: int, nodes: int, shards: int, seed: int) -> None:
    labels = labels_of(count, seed)
    for make in (
        lambda: kshard(labels, nodes, shards, seed),
        lambda: iid(count, nodes, seed),
        lambda: simple(count, nodes),
    ):
        parts = make()
        together = np.concatenate(parts)
        assert len(parts) == nodes
        assert all(len(part) for part in parts)
        assert len(np.unique(together)) == len(together)
        assert together.min() >= 0
        assert together.max() < count
        assert lists(parts) == lists(make())
        assert count - len(together) <= nodes * shards  # rounding leaves at most a sample a shard


@settings(max_examples=30, deadline=None)
@given(st.integers(200, 600), st.integers(1, 5), seeds)
def test_dirichlet_covers_everything_once(count: int, nodes: int, seed: int) -> None:
    parts = dirichlet(labels_of(count, 1), nodes, 1.0, seed, 10)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    assert min(map(len, parts)) >= 10


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 500), st.floats(0.3, 0.7), seeds)
def test_validation_and_test_are_disjoint_and_everything(count: int, fraction: float, seed: int) -> None:
    for split in (validation_split, validation_split_by_writer):
        validation_part, test_part = split(count, fraction, seed)
        assert sorted([*validation_part.tolist(), *test_part.tolist()]) == list(range(count))
        assert abs(len(validation_part) - count * fraction) <= 1
        again, _ = split(count, fraction, seed)
        assert np.array_equal(validation_part, again)


def test_validation_as_torch_and_numpy_split() -> None:
    halves = torch.utils.data.random_split(range(11), [0.5, 0.5], torch.Generator().manual_seed(90))
    data = tiny_data([0] * 11)
    assert lists(list(validation(data, 0.5, 90))) == [list(half.indices) for half in halves]
    assert len(halves[0]) == 6
    np.random.seed(90)
    chosen = np.random.choice(11, 5, replace=False)
    written = tiny_data([0] * 11, [0] * 11)
    rest = [i for i in range(11) if i not in chosen]
    assert lists(list(validation(written, 0.5, 90))) == [chosen.tolist(), rest]


def test_deal_by_name() -> None:
    data = tiny_data([0, 1] * 100, [0, 1] * 100, classes=2)
    assert lists(deal(data, "True", 4, 1)) == lists(kshard(data.train_y, 4, 2, 1))
    assert lists(deal(data, True, 4, 1, shards=3)) == lists(kshard(data.train_y, 4, 3, 1))
    assert lists(deal(data, "kshard", 4, 1)) == lists(deal(data, "True", 4, 1))
    assert lists(deal(data, False, 4, 1)) == lists(iid(200, 4, 1)) == lists(deal(data, "iid", 4, 1))
    assert lists(deal(data, "simple", 4, 1)) == lists(simple(200, 4))
    assert lists(deal(data, "dirichlet", 4, 1, alpha=5)) == lists(dirichlet(data.train_y, 4, 5, 1, 2))
    assert sorted(map(len, deal(data, "writer", 2, 1))) == [100, 100]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(5, 6, 1), "6 nodes cannot share 5"),
        (lambda: simple(5, 0), "at least 1, not 0"),
        (lambda: kshard(labels_of(50, 1), 5, 0, 1), "shards must be at least 1, not 0"),
        (
            lambda: kshard(labels_of(50, 1), 10, 6, 1),
            "10 nodes with 6 shards each are too many for 50 samples",
        ),
        (lambda: kshard(labels_of(50, 1), 51, 1, 1), "51 nodes cannot share 50"),
        (lambda: dirichlet(labels_of(50, 1), 2, 0.0, 1, 10), "alpha .* above 0, not 0"),
        (lambda: dirichlet(labels_of(50, 1), 2, float("nan"), 1, 10), "alpha .* above 0, not nan"),
        (lambda: dirichlet(labels_of(50, 1), 6, 1.0, 1, 10), "6 nodes cannot share 50"),
        (lambda: dirichlet(labels_of(50, 1), 2, 1.0, -1, 10), "not be negative, got -1"),
        (lambda: dirichlet(labels_of(100, 1), 10, 0.01, 1, 10), "take a larger alpha or fewer nodes"),
        (
            lambda: by_writer(np.array([0, 0], np.int32), ["a", "b"], 2, 1),
            "2 nodes need a writer each.* 1 writers",
        ),
        (lambda: fractions(10, 2, [0.5]), "1 fractions for 2 nodes"),
        (lambda: fractions(10, 2, [0.9, 0.9]), r"sum to 1\.8"),
        (lambda: simple(10, 2, [0.01, 0.9]), "node 0 would get no sample"),
        (lambda: validation_split(10, 1.0, 1), "between 0 and 1, not 1.0"),
        (lambda: validation_split(3, 0.1, 1), "leaves one half of 3"),
        (lambda: validation_split_by_writer(10, 0.5, -1), "got -1"),
        (
            lambda: deal(tiny_data([0] * 9), "kshrad", 2, 1),
            "unknown partition 'kshrad'.*did you mean 'kshard'",
        ),
        (lambda: deal(tiny_data([0] * 9), "writer", 2, 1), "has no writers"),
    ],
)
def test_errors_say_the_numbers(call, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skiptrain_plugin.data.partitions.DIRICHLET_DRAWS", 2000)
    with pytest.raises(InputError, match=message):
        call()


def test_kshard_is_fast_for_many_nodes() -> None:
    labels = labels_of(50_000, 0)
    start = time.perf_counter()
    parts = kshard(labels, 4096, 2, 90)
    assert time.perf_counter() - start < 3
    assert len(parts) == 4096


def framework_sizes(count: int, nodes: int) -> list[float]:
    share = (count // nodes) / count
    return [share] * (nodes - 1) + [share + (1.0 - share * nodes)]


@pytest.mark.parametrize("count", [60, 1000, 5003, 50_000])
@pytest.mark.parametrize("nodes", [1, 3, 7, 16, 256])
def test_same_indices_as_the_framework(count: int, nodes: int) -> None:
    framework = pytest.importorskip("decentralizepy.datasets.Partitioner")
    if nodes * 3 > count:
        pytest.skip("more nodes than samples for three shards")
    labels = labels_of(count, 4)
    by_label = np.array(sorted(range(count), key=lambda i: labels[i]))
    sizes = framework_sizes(count, nodes)
    for seed in (0, 90, 1234):
        for shards in (1, 2, 3):
            theirs = framework.KShardDataPartitioner(list(range(count)), sizes, shards, seed).partitions
            assert lists(kshard(labels, nodes, shards, seed)) == [by_label[part].tolist() for part in theirs]
        assert lists(iid(count, nodes, seed)) == framework.DataPartitioner(range(count), sizes, seed).partitions
    assert lists(simple(count, nodes)) == framework.SimpleDataPartitioner(range(count), sizes).partitions


@pytest.mark.parametrize(("nodes", "alpha"), [(3, 1.0), (10, 0.5), (64, 100.0)])
def test_same_dirichlet_as_the_framework(nodes: int, alpha: float) -> None:
    framework = pytest.importorskip("decentralizepy.datasets.Partitioner")

    class Labelled(list):
        targets = labels_of(5000, 2)

    theirs = framework.DirichletDataPartitioner(Labelled(range(5000)), [0] * nodes, 90, alpha, 10).partitions
    assert lists(dirichlet(Labelled.targets, nodes, alpha, 90, 10)) == theirs


def test_same_writers_as_the_framework() -> None:
    framework = pytest.importorskip("decentralizepy.datasets.Partitioner")
    names = [f"f{i * 37 % 101:04d}_{i % 7}" for i in range(64)]
    owner = np.repeat(np.arange(64, dtype=np.int32), np.arange(64) + 5)
    files = sorted(f"{name}.json" for name in names[32:])  # the 32 with most samples
    dealt = framework.DataPartitioner(files, framework_sizes(32, 32), seed=90).partitions
    ours = by_writer(owner, names, 32, 90)
    assert [f"{names[owner[part[0]]]}.json" for part in ours] == [files[part[0]] for part in dealt]


@pytest.mark.parametrize("partition", ["kshard", "True", "iid", "simple", "dirichlet"])
def test_same_samples_as_the_frameworks_class(partition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The framework's CIFAR10 on a stand-in for torchvision's, whose images are their own indices."""
    from skiptrain_plugin.torchvision_fix import import_torchvision

    torchvision = import_torchvision()
    cifar = pytest.importorskip("decentralizepy.datasets.CIFAR10")
    linear = pytest.importorskip("decentralizepy.mappings.Linear")
    data = tiny_data(labels_of(503, 6).tolist())

    class Numbered:
        targets = data.train_y.tolist()

        def __init__(self, **_: object) -> None:
            pass

        def __len__(self) -> int:
            return len(self.targets)

        def __getitem__(self, index: int) -> tuple[int, int]:
            if index >= len(self.targets):
                raise IndexError
            return index, self.targets[index]

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Numbered)
    parts = deal(data, partition, 6, 90, shards=2, alpha=1.0)
    for rank in range(6):
        theirs = cifar.CIFAR10(
            rank,
            0,
            linear.Linear(1, 6),
            random_seed=90,
            train_dir="here",
            test_dir="here",
            partition_niid=partition,
            shards=2,
            alpha=1.0,
            validation_source="Test",
            validation_size=0.5,
        )
        assert parts[rank].tolist() == [theirs.trainset[i][0] for i in range(len(theirs.trainset))]
        halves = [[half[i][0] for i in range(len(half))] for half in (theirs.validationset, theirs.testset)]
        assert halves == lists(list(validation(data, 0.5, 90)))
