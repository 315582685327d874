"""The energy spent by each node, added up round by round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.energy.devices import TraceRow

COMMUNICATION_WH_PER_BYTE = 7.0 / (256 * 6 * 1000 * 89_834 * 4)
"""Wh per byte sent: the paper's 7 Wh for 256 nodes, 6 neighbours, 1000 rounds of 89 834 float32."""


def assign(trace: Sequence[TraceRow], uids: NDArray[np.int64]) -> list[TraceRow]:
    """The device of each node: uid mod (number of devices)."""
    return [trace[int(uid) % len(trace)] for uid in uids]


class EnergyLedger:
    """Cumulative Wh of each node, for training and for communication."""

    def __init__(self, wh_per_training_round: NDArray[np.float64]) -> None:
        self.wh_per_training_round = wh_per_training_round
        self.training_rounds = np.zeros(len(wh_per_training_round), dtype=np.int64)
        self.bytes_sent = np.zeros(len(wh_per_training_round), dtype=np.int64)

    def charge(self, trained: NDArray[np.bool_], bytes_sent: NDArray[np.int64]) -> None:
        """Adds one round: a training round's energy where ``trained``, and the bytes each node sent."""
        self.training_rounds += trained
        self.bytes_sent += bytes_sent

    @property
    def training_wh(self) -> NDArray[np.float64]:
        """ℰ_i: training energy of each node so far, Wh."""
        return np.asarray(self.training_rounds * self.wh_per_training_round)

    @property
    def communication_wh(self) -> NDArray[np.float64]:
        """Communication energy of each node so far, Wh."""
        return np.asarray(self.bytes_sent * COMMUNICATION_WH_PER_BYTE, dtype=np.float64)
