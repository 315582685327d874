"""Metropolis-Hastings averaging over whoever answered, as a mixin for the framework's Sharing."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from skiptrain_plugin.deployment.flat import Vector, from_vector, to_vector
from skiptrain_plugin.errors import InputError

PEER_DEADLINE = 300.0
"""Seconds. Longer than a round of training and evaluation takes on a slow machine, so that nobody who is only slow
is left out; short enough that a machine that is lost costs minutes and not a night."""

_LOG = logging.getLogger(__name__)


def metropolis_weights(degree: int, others: Mapping[int, int]) -> dict[int, float]:
    """W_ij = 1 / (max(deg i, deg j) + 1) for each j of ``others`` (uid → degree); W_ii is 1 − Σ_j W_ij.

    Degrees are those of the whole graph, not of who answered: W stays symmetric when an edge fails both ways.
    """
    return {uid: 1.0 / (max(degree, other) + 1.0) for uid, other in others.items()}


def weighted_sum(own: Vector, others: Mapping[int, NDArray[Any]], weights: Mapping[int, float]) -> Vector:
    """(1 − Σ_j W_ij) x_i + Σ_j W_ij x_j, in the order of ``others``."""
    total: Vector = own * np.float32(1.0 - sum(weights[uid] for uid in others))
    for uid, vector in others.items():
        total += vector * np.float32(weights[uid])
    return total


class MetropolisAveraging:
    """Sends the whole model as one vector with degree, round, kind and budget; averages what came back."""

    # From the framework:
    uid: int
    model: nn.Module
    graph: Any
    communication_round: int
    compress_data: Any
    decompress_data: Any

    _degree = 0
    _kind = ""
    _remaining = 0
    peer_deadline: float
    """Seconds after which a silent neighbour is left out of the round's average."""

    def set_deadline(self, seconds: Any) -> None:
        """Takes ``peer_deadline`` as the INI says it."""
        try:
            self.peer_deadline = PEER_DEADLINE if seconds in (None, "") else float(seconds)
        except ValueError:
            self.peer_deadline = 0.0
        if not 0 < self.peer_deadline < float("inf"):
            raise InputError(f"[SHARING] peer_deadline: must be a number of seconds above 0, not '{seconds}'")

    def announce(self, kind: str, remaining: int) -> None:
        """What the next message says of its sender: the kind of round, and training rounds left (−1: no limit)."""
        self._kind, self._remaining = kind, remaining

    def serialized_model(self) -> dict[str, Any]:
        """The model as ``params``, compressed if the INI asks for it."""
        packed: dict[str, Any] = self.compress_data({"params": to_vector(self.model)})
        return packed

    def get_data_to_send(self, degree: int | None = None) -> dict[str, Any]:
        """The message of this round."""
        self._degree = self._graph_degree() if degree is None else degree
        return self.serialized_model() | {
            "degree": self._degree,
            "iteration": self.communication_round,
            "kind": self._kind,
            "remaining": self._remaining,
        }

    def _averaging(self, peer_deques: Mapping[int, deque[dict[str, Any]]]) -> None:
        """x_i ← (1 − Σ_j W_ij) x_i + Σ_j W_ij x_j over the neighbours in ``peer_deques``."""
        own = to_vector(self.model)
        vectors, degrees = {}, {}
        for uid in sorted(peer_deques):
            message = peer_deques[uid].popleft()
            params = self._params(uid, message, own.shape)
            if params is not None:
                vectors[uid], degrees[uid] = params, int(message["degree"])
        from_vector(self.model, weighted_sum(own, vectors, metropolis_weights(self._degree, degrees)))
        self.communication_round += 1

    def _params(self, uid: int, message: dict[str, Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
        params = np.asarray(self.decompress_data(message)["params"])
        if params.shape == shape and np.issubdtype(params.dtype, np.floating) and np.isfinite(params).all():
            return params
        _LOG.warning("the model of node %d is left out: it is not %d finite numbers", uid, shape[0])
        return None

    def _graph_degree(self) -> int:
        return len(self.graph.neighbors(self.uid))
