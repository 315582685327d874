"""Local training of many nodes as one batch with ``torch.func``, for accelerators."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from skiptrain_plugin.engine.minibatches import minibatch_seed
from skiptrain_plugin.engine.node_data import NodeData
from skiptrain_plugin.engine.parameters import Layout
from skiptrain_plugin.engine.training import (
    OptimizerState,
    autocast,
    diverged,
    kept_state,
    loss_function,
    optimizer_factory,
    round_batches,
)
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.models import build_model

_NODES_AT_ONCE = 64


class BatchedTrainer:
    """Trains up to 64 nodes at a time: one vectorized forward and backward pass for all of them."""

    def __init__(self, experiment: Experiment, data: NodeData, models: Tensor, layout: Layout) -> None:
        self._experiment, self._data, self._models, self._layout = experiment, data, models, layout
        self._make_optimizer = optimizer_factory(experiment)
        self._keeps_state = not experiment.run.reset_optimizer
        self.states: dict[int, OptimizerState] = {}
        self._model = build_model(experiment).to(models.device, models.dtype).train()
        self._learning = {name for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        loss = loss_function(experiment)

        def node_loss(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> tuple[Tensor, dict[str, Tensor]]:
            changed = {name: value.clone() for name, value in buffers.items()}
            with autocast(experiment.run.precision, models.device.type):
                output = functional_call(self._model, (parameters, changed), (x,))
                return loss(output.to(models.dtype), y), changed

        self._gradients = vmap(grad_and_value(node_loss, has_aux=True), randomness="different")

    def train(self, uids: Sequence[int], round: int, stop: Callable[[], bool]) -> list[int]:
        """See ``Trainer``."""
        done: list[int] = []
        for start in range(0, len(uids), _NODES_AT_ONCE):
            if stop():
                break
            group = list(uids[start : start + _NODES_AT_ONCE])
            self._train_group(group, round)
            done += group
        return done

    def _train_group(self, uids: list[int], round: int) -> None:
        torch.manual_seed(minibatch_seed(self._experiment.seed, uids[0], round))
        rows = self._models[uids]
        optimizers = [self._optimizer(uid, row) for uid, row in zip(uids, rows, strict=True)]
        orders = [
            list(
                round_batches(
                    self._experiment,
                    self._data,
                    minibatch_seed(self._experiment.seed, uid, round),
                    len(self._data.train[uid]),
                )
            )
            for uid in uids
        ]
        losses = [0.0] * len(uids)
        for step in range(max(map(len, orders))):
            by_size: dict[int, list[int]] = defaultdict(list)
            for place, order in enumerate(orders):
                if step < len(order):
                    by_size[len(order[step])].append(place)
            for places in by_size.values():
                batches = [orders[place][step] for place in places]
                for place, value in zip(places, self._step(uids, rows, places, batches, optimizers), strict=True):
                    losses[place] = value
        self._models[uids] = rows
        for uid, value, (optimizer, parameters) in zip(uids, losses, optimizers, strict=True):
            if not math.isfinite(value):
                raise diverged(uid, round, value)
            if self._keeps_state:
                self.states[uid] = kept_state(optimizer, parameters)

    def _step(
        self,
        uids: list[int],
        rows: Tensor,
        places: list[int],
        batches: list[Tensor],
        optimizers: list[tuple[Any, list[Tensor]]],
    ) -> list[float]:
        """One local step of the nodes at ``places``, whose minibatches are equally large."""
        samples = [self._data.train[uids[place]] for place in places]
        images = [self._data.inputs(s.x[b]) for s, b in zip(samples, batches, strict=True)]
        x = torch.stack(images).to(rows.device, rows.dtype)
        y = torch.stack([s.y[b] for s, b in zip(samples, batches, strict=True)]).to(rows.device)
        here = rows[places]
        before = self._layout.named(here, parameters=False)
        gradients, (losses, buffers) = self._gradients(self._layout.named(here, parameters=True), before, x, y)
        for slot in self._layout.slots:
            if not slot.is_parameter:
                slot.view(rows)[places] = buffers[slot.name]
        for index, place in enumerate(places):
            optimizer, parameters = optimizers[place]
            for parameter, (name, gradient) in zip(parameters, gradients.items(), strict=True):
                parameter.grad = gradient[index] if name in self._learning else None
            optimizer.step()
        values: list[float] = losses.tolist()
        return values

    def _optimizer(self, uid: int, row: Tensor) -> tuple[Any, list[Tensor]]:
        """The optimizer of one node over views of its row, with the state the node kept."""
        parameters = list(self._layout.named(row, parameters=True).values())
        optimizer = self._make_optimizer(parameters)
        for index, state in self.states.get(uid, {}).items():
            optimizer.state[parameters[index]] = state
        return optimizer, parameters
