"""Who trains in round t: the paper's four algorithms and all-reduce, each one class.

A policy is a pure function of (round, remaining budgets). It decides for all of its nodes at once;
an engine with one node a process builds it for that node's uid alone and gets the same decisions.
Third parties register a class under the entry-point group ``skiptrain_plugin.policies``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.algorithm.randomness import uniforms
from skiptrain_plugin.algorithm.schedule import RoundKind, RoundSchedule
from skiptrain_plugin.errors import InputError, unknown

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

POLICY_GROUP = "skiptrain_plugin.policies"


@dataclass(frozen=True)
class PolicySettings:
    """What a policy knows of the experiment."""

    uids: Ints
    """The nodes to decide for."""
    budgets: Ints
    """τ_i, training rounds that node ``uids[i]`` can afford."""
    schedule: RoundSchedule
    rounds: int
    """T, the rounds of the whole experiment."""
    seed: int
    options: Mapping[str, str] = field(default_factory=dict)
    """Keys of the NODE section that the policy declares in ``option_names``."""


class Policy(ABC):
    """Decides who trains; subclasses implement ``decide``."""

    name: ClassVar[str]
    """The name in the INI."""
    constrained: ClassVar[bool] = False
    """Whether training is limited by the budgets τ."""
    averages_globally: ClassVar[bool] = False
    """Whether every node takes the average of all nodes instead of its neighbours'."""
    option_names: ClassVar[frozenset[str]] = frozenset()
    """Further keys of the NODE section that this policy reads from ``settings.options``."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings

    @abstractmethod
    def kind(self, round: int) -> RoundKind:
        """The coordinated kind of round ``round`` (counted from 0)."""

    @abstractmethod
    def decide(self, round: int, remaining: Ints) -> Bools:
        """Which nodes train in ``round`` when ``remaining`` training rounds are left to each."""

    def probabilities(self, round: int, remaining: Ints) -> Floats:
        """The probability with which each node trains in ``round``, before the draw."""
        return self.decide(round, remaining).astype(np.float64)

    def expected_training_rounds(self) -> Floats:
        """The mean number of rounds in which each node trains, before unlucky draws meet the budget."""
        return self._count_training_rounds().astype(np.float64)

    def maximal_training_rounds(self) -> Ints:
        """The largest number of rounds in which each node can train."""
        return self._count_training_rounds()

    def spend(self, remaining: Ints, trains: Bools) -> Ints:
        """The budgets after a round: τ^{t+1} = τ^t − 1 for each node that trained."""
        return remaining - trains.astype(np.int64) if self.constrained else remaining

    def replay(self, rounds: int | None = None) -> Iterator[tuple[Ints, Bools]]:
        """For each round from 0 on (by default all T): the budgets before it, and who trains in it."""
        remaining = self.settings.budgets
        for round in range(self.settings.rounds if rounds is None else rounds):
            trains = self.decide(round, remaining)
            yield remaining, trains
            remaining = self.spend(remaining, trains)

    def _count_training_rounds(self) -> Ints:
        counts = np.zeros(len(self.settings.uids), dtype=np.int64)
        for _, trains in self.replay():
            counts += trains
        return counts

    def _all(self, value: bool) -> Bools:
        return np.full(len(self.settings.uids), value)


class DPSGD(Policy):
    """D-PSGD: every node trains in every round."""

    name = "dpsgd"

    def kind(self, round: int) -> RoundKind:
        return RoundKind.TRAINING

    def decide(self, round: int, remaining: Ints) -> Bools:
        return self._all(True)


class AllReduce(DPSGD):
    """D-PSGD whose nodes all take the global average of the models in every round."""

    name = "allreduce"
    averages_globally = True


class Greedy(Policy):
    """Every node trains until its budget is exhausted, and only synchronizes from then on."""

    name = "greedy"
    constrained = True

    def kind(self, round: int) -> RoundKind:
        return RoundKind.TRAINING

    def decide(self, round: int, remaining: Ints) -> Bools:
        return remaining > 0


class SkipTrain(Policy):
    """Γ_train training rounds alternate with Γ_sync synchronization rounds, the same for all nodes."""

    name = "skiptrain"

    def kind(self, round: int) -> RoundKind:
        return self.settings.schedule.kind(round)

    def decide(self, round: int, remaining: Ints) -> Bools:
        return self._all(self.kind(round) is RoundKind.TRAINING)


class SkipTrainConstrained(SkipTrain):
    """SkipTrain where node i trains in a training round with probability p_i = min(τ_i / T_train, 1).

    It never trains more than τ_i times.
    """

    name = "skiptrain_constrained"
    constrained = True

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        nominal = settings.schedule.nominal_training_rounds(settings.rounds)
        self.training_probability: Floats = np.minimum(settings.budgets / nominal, 1.0)

    def probabilities(self, round: int, remaining: Ints) -> Floats:
        trains = (self.kind(round) is RoundKind.TRAINING) & (remaining > 0)
        return np.where(trains, self.training_probability, 0.0)

    def decide(self, round: int, remaining: Ints) -> Bools:
        if self.kind(round) is RoundKind.SYNCHRONIZATION:
            return self._all(False)
        draws = uniforms(self.settings.seed, "participation", self.settings.uids, round)
        return draws < self.probabilities(round, remaining)

    def expected_training_rounds(self) -> Floats:
        """min(p_i · N_train, τ_i) with N_train the training rounds of the schedule."""
        actual = self.settings.schedule.training_rounds(self.settings.rounds)
        return np.minimum(self.training_probability * actual, self.settings.budgets)

    def maximal_training_rounds(self) -> Ints:
        actual = self.settings.schedule.training_rounds(self.settings.rounds)
        return np.where(self.training_probability > 0, np.minimum(actual, self.settings.budgets), 0)


_BUILT_IN: dict[str, type[Policy]] = {
    policy.name: policy for policy in (DPSGD, AllReduce, Greedy, SkipTrain, SkipTrainConstrained)
}


def policy_names() -> list[str]:
    """The names that ``algorithm`` may have in the INI, third parties' included."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=POLICY_GROUP))})


def policy_class(name: str, where: str = "") -> type[Policy]:
    """The policy registered under ``name``; a built-in name cannot be taken over."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for point in entry_points(group=POLICY_GROUP):
        if point.name == name:
            loaded = point.load()
            if not (isinstance(loaded, type) and issubclass(loaded, Policy)):
                raise InputError(f"entry point '{name}' of {POLICY_GROUP} ({point.value}) is not a Policy")
            return loaded
    raise unknown("algorithm", name, policy_names(), where)
