"""The coordinated round schedule of SkipTrain: Γ_train training rounds, then Γ_sync synchronization rounds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from skiptrain_plugin.errors import InputError


class RoundKind(str, Enum):
    """What the network does in a round: train, share and average; or only share and average."""

    TRAINING = "training"
    SYNCHRONIZATION = "synchronization"


@dataclass(frozen=True)
class RoundSchedule:
    """Rounds count from 0; round t is a training round when t mod (Γ_train + Γ_sync) < Γ_train.

    The paper's pseudo-code counts from 1, but its energy table follows only from counting from 0
    (Γ 3/3 over 1000 rounds: 501 training rounds, 756.53 Wh).
    """

    training: int
    """Γ_train, rounds."""
    synchronization: int
    """Γ_sync, rounds."""

    def __post_init__(self) -> None:
        if self.training < 1:
            raise InputError(f"Γ_train (consecutive_training_rounds) must be at least 1, not {self.training}")
        if self.synchronization < 1:
            raise InputError(
                f"Γ_sync (consecutive_synching_rounds) must be at least 1, not {self.synchronization};"
                " algorithm dpsgd trains in every round"
            )

    @property
    def period(self) -> int:
        """Γ_train + Γ_sync, rounds."""
        return self.training + self.synchronization

    def kind(self, round: int) -> RoundKind:
        """The kind of round ``round``, counted from 0."""
        trains = round % self.period < self.training
        return RoundKind.TRAINING if trains else RoundKind.SYNCHRONIZATION

    def training_rounds(self, rounds: int) -> int:
        """How many of the first ``rounds`` rounds are training rounds."""
        full, rest = divmod(rounds, self.period)
        return full * self.training + min(rest, self.training)

    def nominal_training_rounds(self, rounds: int) -> float:
        """T_train = Γ_train / (Γ_train + Γ_sync) · T, the paper's equation for the probabilities."""
        return self.training / self.period * rounds


TUNED_SCHEDULES = {6: RoundSchedule(4, 4), 8: RoundSchedule(3, 3), 10: RoundSchedule(4, 2)}
"""The paper's tuned (Γ_train, Γ_sync) by degree of the regular topology."""


def tuned_schedule(degree: float) -> RoundSchedule:
    """The tuned schedule of the nearest degree in the paper (the smaller one in a tie)."""
    return TUNED_SCHEDULES[min(TUNED_SCHEDULES, key=lambda d: (abs(d - degree), d))]
