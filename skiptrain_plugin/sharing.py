"""SkipTrain's sharing for DecentralizePy: Metropolis-Hastings over whoever answered."""

from __future__ import annotations

from typing import Any

from skiptrain_plugin import framework

framework.require()

from decentralizepy.sharing.Sharing import Sharing  # noqa: E402

from skiptrain_plugin.deployment.averaging import PEER_DEADLINE, MetropolisAveraging  # noqa: E402


class SkipTrainSharing(MetropolisAveraging, Sharing):  # type: ignore[misc]
    """The framework's Sharing with a deadline.

    A neighbour silent for ``peer_deadline`` seconds is left out of the round's average, the weights still sum to
    one, and it is taken in again when it speaks. The message carries degree, round, kind and remaining budget.
    """

    def __init__(
        self,
        rank: int,
        machine_id: int,
        communication: Any,
        mapping: Any,
        graph: Any,
        model: Any,
        dataset: Any,
        log_dir: str,
        compress: bool = False,
        compression_package: str | None = None,
        compression_class: str | None = None,
        float_precision: Any = None,
        peer_deadline: float = PEER_DEADLINE,
    ) -> None:
        super().__init__(
            rank,
            machine_id,
            communication,
            mapping,
            graph,
            model,
            dataset,
            log_dir,
            compress,
            compression_package,
            compression_class,
            float_precision,
        )
        self.set_deadline(peer_deadline)
