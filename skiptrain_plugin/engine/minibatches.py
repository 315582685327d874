"""The order of a node's samples in a training round, the same in both engines.

A ``torch.utils.data.DataLoader`` draws two numbers from torch's global generator for each pass: its own base
seed, then the seed of the shuffle. Seeding that generator by (seed, uid, round) and drawing in the same way
gives here, without a DataLoader, the batches that DecentralizePy's Training sees when the plugin seeds it so.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from skiptrain_plugin.algorithm.randomness import derived_seed
from skiptrain_plugin.errors import InputError


def minibatch_seed(seed: int, uid: int, round: int) -> int:
    """What torch's generator is seeded with before node ``uid`` trains in ``round`` (counted from 0)."""
    return derived_seed(seed, "minibatches", uid, round)


def passes(seed: int, samples: int, shuffle: bool) -> Iterator[Tensor]:
    """The order of the ``samples`` in each pass over the data, without end."""
    source = torch.Generator().manual_seed(seed)
    order = torch.arange(samples)
    while True:
        _draw(source)
        if shuffle:
            order = torch.randperm(samples, generator=torch.Generator().manual_seed(_draw(source)))
        yield order


def minibatches(
    seed: int, samples: int, *, batch_size: int, steps: int, full_epochs: bool, shuffle: bool, drop_last: bool
) -> Iterator[Tensor]:
    """Indices of each minibatch of a training round.

    ``steps`` minibatches, with another pass when the data run out; with ``full_epochs``, ``steps`` whole passes.
    A pass ends with the short last batch unless ``drop_last``.
    """
    if samples == 0 or (drop_last and samples < batch_size):
        raise InputError(f"a node has {samples} training samples, too few for a minibatch of {batch_size}")
    taken = 0
    for number, order in enumerate(passes(seed, samples, shuffle)):
        if full_epochs and number == steps:
            return
        for start in range(0, samples - batch_size + 1 if drop_last else samples, batch_size):
            yield order[start : start + batch_size]
            taken += 1
            if not full_epochs and taken == steps:
                return


def _draw(source: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=source).item())
