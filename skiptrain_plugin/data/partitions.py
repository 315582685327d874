"""Which training samples each node gets, and how the test set is halved into validation and test.

Every function deals as the class of the same purpose in DecentralizePy does: the same seed and the same
number of nodes give the same indices in the same order. That is why the generators here are the
framework's (Python's ``random``, numpy's, torch's) and not the ones of ``algorithm.randomness``.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.data.base import ImageData, Indices, Labels
from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.catalogue import PARTITIONS
from skiptrain_plugin.experiment.sections import partition_name

DIRICHLET_DRAWS = 10_000_000  # proportions drawn for one class before giving up


def fractions(count: int, nodes: int, sizes: Sequence[float] | None = None) -> list[float]:
    """Each node's share of ``count`` samples: equal, the rest to the last, or ``sizes`` as given."""
    if nodes < 1:
        raise InputError(f"the number of nodes must be at least 1, not {nodes}")
    if nodes > count:
        raise InputError(f"{nodes} nodes cannot share {count} training samples: there are more nodes than samples")
    if sizes is None:
        share = (count // nodes) / count
        equal = [share] * nodes
        equal[-1] += 1.0 - share * nodes
        return equal
    if len(sizes) != nodes:
        raise InputError(f"sizes has {len(sizes)} fractions for {nodes} nodes")
    if not all(0 < size <= 1 for size in sizes) or sum(sizes) > 1 + 1e-9:
        raise InputError(f"sizes must be fractions above 0 that sum to at most 1; these sum to {sum(sizes):g}")
    return [float(size) for size in sizes]


def _slices(order: Indices, shares: list[float]) -> list[Indices]:
    """Consecutive pieces of ``order``, int(share · count) each."""
    parts = []
    start = 0
    for node, share in enumerate(shares):
        length = int(share * len(order))
        if length == 0:
            raise InputError(f"node {node} would get no sample: its share {share:g} of {len(order)} is below one")
        parts.append(order[start : start + length])
        start += length
    return parts


def iid(count: int, nodes: int, seed: int, sizes: Sequence[float] | None = None) -> list[Indices]:
    """Samples shuffled, then cut into consecutive pieces (the framework's DataPartitioner)."""
    shares = fractions(count, nodes, sizes)
    order = list(range(count))
    Random(seed).shuffle(order)
    return _slices(np.array(order, dtype=np.int64), shares)


def simple(count: int, nodes: int, sizes: Sequence[float] | None = None) -> list[Indices]:
    """Samples in stored order, cut into consecutive pieces (the framework's SimpleDataPartitioner)."""
    return _slices(np.arange(count, dtype=np.int64), fractions(count, nodes, sizes))


def kshard(labels: Labels, nodes: int, shards: int, seed: int, sizes: Sequence[float] | None = None) -> list[Indices]:
    """Few classes a node: ``shards`` runs of consecutive samples from the training set sorted by label.

    As the framework's CIFAR10 class with its KShardDataPartitioner: each shard starts at a random place
    of what is still there and wraps around at the end; a shard is int(share · count) // shards samples
    long.
    """
    if shards < 1:
        raise InputError(f"the number of shards must be at least 1, not {shards}")
    count = len(labels)
    shares = fractions(count, nodes, sizes)
    rest: Indices = np.argsort(labels, kind="stable").astype(np.int64, copy=False)
    rng = Random(seed)
    parts = []
    for node, share in enumerate(shares):
        length = int(share * count) // shards
        if length == 0:
            raise InputError(
                f"{nodes} nodes with {shards} shards each are too many for {count} samples: "
                f"a shard of node {node} has no sample"
            )
        pieces = []
        for _ in range(shards):
            start = rng.randint(0, len(rest) - 1)
            wrapped = start + length - len(rest)
            if wrapped > 0:
                pieces += [rest[start:], rest[:wrapped]]
                rest = rest[wrapped:start]
            else:
                pieces.append(rest[start : start + length])
                rest = np.concatenate((rest[:start], rest[start + length :]))
        parts.append(np.concatenate(pieces))
    return parts


def dirichlet(labels: Labels, nodes: int, alpha: float, seed: int, classes: int) -> list[Indices]:
    """Each class spread over the nodes by proportions from Dirichlet(alpha): small alpha, few classes a node.

    As the framework's DirichletDataPartitioner: a node that already has count / nodes samples gets no
    more, and all is drawn anew until every node has at least ``classes`` samples.
    """
    if not 0 < alpha < float("inf"):
        raise InputError(f"alpha of the Dirichlet partition must be a number above 0, not {alpha}")
    if seed < 0:
        raise InputError(f"the seed of the Dirichlet partition must not be negative, got {seed}")
    count = len(labels)
    if nodes < 1 or nodes * classes > count:
        raise InputError(
            f"the Dirichlet partition gives every node at least {classes} samples: "
            f"{nodes} nodes cannot share {count} that way"
        )
    rng = np.random.default_rng(seed)
    attempts = DIRICHLET_DRAWS // nodes
    for _ in range(attempts):
        held = np.zeros(nodes, dtype=np.int64)
        dealt: list[tuple[NDArray[np.intp], Indices]] = []
        for label in range(classes):
            members = np.flatnonzero(labels == label)
            rng.shuffle(members)
            shares = rng.dirichlet(np.repeat(alpha, nodes)) * (held < count / nodes)
            total = shares.sum()
            cuts = np.zeros(nodes + 1, dtype=np.int64)  # where no share is left at all, the last node takes the class
            if total > 0:
                cuts[1:] = np.cumsum(shares / total) * len(members)
            cuts[-1] = len(members)
            held += np.diff(cuts)
            dealt.append((members, cuts))
        if held.min() >= classes:
            break
    else:
        raise InputError(
            f"no Dirichlet draw with alpha {alpha:g} in {attempts} gave each of {nodes} nodes "
            f"at least {classes} of {count} samples; take a larger alpha or fewer nodes"
        )
    parts = []
    for node in range(nodes):
        pieces = [members[cuts[node] : cuts[node + 1]] for members, cuts in dealt]
        own = np.concatenate(pieces).tolist()
        rng.shuffle(own)  # a list, as in the framework: an array would be shuffled by other draws
        parts.append(np.array(own, dtype=np.int64))
    return parts


def by_writer(train_writer: NDArray[np.int32], writers: Sequence[str], nodes: int, seed: int) -> list[Indices]:
    """The ``nodes`` writers with most samples, one a node; equal counts go by name.

    The nodes get them as the framework's Femnist class would from a folder with one file
    ``<writer>.json`` for each: file names sorted, then shuffled by the seed.
    """
    if nodes < 1:
        raise InputError(f"the number of nodes must be at least 1, not {nodes}")
    counts = np.bincount(train_writer, minlength=len(writers))
    present = [w for w in range(len(writers)) if counts[w] > 0]
    if nodes > len(present):
        raise InputError(f"{nodes} nodes need a writer each, but there are {len(present)} writers with samples")
    largest = sorted(present, key=lambda w: (-counts[w], writers[w]))[:nodes]
    files = sorted(largest, key=lambda w: f"{writers[w]}.json")
    Random(seed).shuffle(files)
    by_index = np.argsort(train_writer, kind="stable").astype(np.int64, copy=False)
    ends = np.cumsum(counts)
    return [by_index[ends[w] - counts[w] : ends[w]] for w in files]


def _check_fraction(count: int, fraction: float) -> None:
    if not 0 < fraction < 1:
        raise InputError(f"the validation part must be a fraction between 0 and 1, not {fraction}")
    if int(count * fraction) < 1 or int(count * fraction) >= count:
        raise InputError(f"a validation part of {fraction:g} leaves one half of {count} test samples empty")


def validation_split(count: int, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Validation and test indices of ``count`` test samples, as the framework's CIFAR10 class splits them."""
    import torch
    from torch.utils.data import Subset, random_split

    _check_fraction(count, fraction)
    everything: Sequence[int] = range(count)
    halves: list[Subset[int]] = random_split(
        everything,  # type: ignore[arg-type]
        [fraction, 1 - fraction],
        torch.Generator().manual_seed(seed),
    )
    first, second = (np.array(half.indices, dtype=np.int64) for half in halves)
    return first, second


def validation_split_by_writer(count: int, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Validation and test indices of ``count`` test samples, as the framework's Femnist class splits them."""
    _check_fraction(count, fraction)
    if not 0 <= seed < 2**32:
        raise InputError(f"the seed of this validation split must be between 0 and 2^32 - 1, got {seed}")
    chosen = np.random.RandomState(seed).choice(count, int(count * fraction), replace=False).astype(np.int64)
    return chosen, np.delete(np.arange(count, dtype=np.int64), chosen)


def deal(
    data: ImageData,
    partition: str | bool,
    nodes: int,
    seed: int,
    shards: int = 2,
    alpha: float = 100.0,
    sizes: Sequence[float] | None = None,
) -> list[Indices]:
    """The training samples of each node by the name of the partition, as ``partition_niid`` of the INI says it.

    True is an old name of ``kshard`` and False or nothing one of ``iid``, as in the framework. ``sizes`` are the
    nodes' fractions of the samples, by default equal; ``dirichlet`` and ``writer`` make their own.
    """
    name = partition_name(partition)
    count = len(data.train_y)
    if name == "kshard":
        return kshard(data.train_y, nodes, shards, seed, sizes)
    if name == "iid":
        return iid(count, nodes, seed, sizes)
    if name == "simple":
        return simple(count, nodes, sizes)
    if sizes is not None and name in PARTITIONS:
        raise InputError(f"sizes cannot be given with partition '{name}', which makes its own")
    if name == "dirichlet":
        return dirichlet(data.train_y, nodes, alpha, seed, data.classes)
    if name == "writer":
        if data.train_writer is None:
            raise InputError(f"{data.title} has no writers: partition 'writer' is for femnist and glyphs")
        return by_writer(data.train_writer, data.writers, nodes, seed)
    raise unknown("partition", str(partition), PARTITIONS)


def validation(data: ImageData, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Validation and test indices into the test arrays, split the way the framework does for this dataset."""
    split = validation_split if data.train_writer is None else validation_split_by_writer
    return split(len(data.test_y), fraction, seed)
