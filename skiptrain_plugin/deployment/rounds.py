"""A node's loop: decide, train, share, average, record, evaluate.

A mixin for the framework's DPSGDNode; what it uses of that class is small and is held against it by a test.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skiptrain_plugin.deployment import node_files
from skiptrain_plugin.deployment.averaging import PEER_DEADLINE
from skiptrain_plugin.deployment.flat import from_vector, to_vector
from skiptrain_plugin.deployment.images import mean_scores, mean_training_loss
from skiptrain_plugin.deployment.link import Link
from skiptrain_plugin.deployment.peers import BYE, MODEL, Message, Peers
from skiptrain_plugin.deployment.settings import NodeSettings
from skiptrain_plugin.engine.minibatches import minibatch_seed
from skiptrain_plugin.engine.training import arithmetic, diverged
from skiptrain_plugin.results.lines import LineWriter

START_DEADLINE = 120.0
"""Seconds that neighbours have at least to start up: they import, load their data and say hello."""
_LINGER = 1000
"""Milliseconds that the last messages have to leave this process."""
_LOG = logging.getLogger(__name__)


class RoundLoop:
    """The rounds of one SkipTrain node. Override a step to change it; ``self.iteration`` is the round, from 0."""

    # From the framework:
    rank: int
    uid: int
    iterations: int
    log_dir: str
    weights_store_dir: str
    test_after: int
    train_evaluate_after: int
    reset_optimizer: int
    my_neighbors: set[int]
    model: Any
    dataset: Any
    trainer: Any
    loss: Any
    optimizer: Any
    optimizer_class: Any
    optimizer_params: Any
    communication: Any
    sharing: Any
    graph: Any
    mapping: Any
    connect_neighbor: Any

    settings: NodeSettings
    link: Link | None = None
    peers: Peers
    remaining: NDArray[np.int64]
    """τ left, training rounds."""
    trained = False
    """Whether the node trains in the round under way."""
    iteration = 0
    _lines: LineWriter

    def run(self) -> None:
        """All rounds, then goodbye. The framework's constructor calls this."""
        self.begin()
        try:
            while self.iteration < self.iterations:
                self.round()
            self.finish()
        finally:
            self.close()

    def round(self) -> None:
        """One round."""
        self.catch_up()
        self.trained = self.decide()
        if self.trained:
            self.train()
        self.share()
        self.average()
        self.record()
        self.evaluate()
        self.iteration += 1
        self.keep()

    # The steps of a round.

    def decide(self) -> bool:
        """Whether this node trains now: the policy's decision, the same as in the embedded engine."""
        return bool(self.settings.policy.decide(self.iteration, self.remaining)[0])

    def train(self) -> None:
        """A training round of the framework's trainer on the minibatches of (seed, uid, round)."""
        torch.manual_seed(minibatch_seed(self.settings.seed, self.uid, self.iteration))
        with arithmetic(self.settings.run):
            self.trainer.train(self.dataset)
        if not np.isfinite(to_vector(self.model)).all():
            raise diverged(self.uid, self.iteration, math.nan)

    def share(self) -> None:
        """Sends the model to every neighbour that is there."""
        self.my_neighbors = self.get_neighbors()
        self.connect_neighbors()
        if hasattr(self.sharing, "announce"):
            policy = self.settings.policy
            left = int(policy.spend(self.remaining, np.array([self.trained]))[0]) if policy.constrained else -1
            self.sharing.announce(policy.kind(self.iteration).value, left)
        message = self.sharing.get_data_to_send(degree=len(self.my_neighbors))
        message["CHANNEL"] = MODEL
        self._send([n for n in sorted(self.my_neighbors) if n not in self.peers.away], message)

    def average(self) -> None:
        """Averages with whoever answers before ``peer_deadline``."""
        answers = self.peers.wait_for_models(self.my_neighbors, self.peer_deadline)
        self.answered = len(answers)
        if answers:
            self.sharing._averaging({uid: deque([message]) for uid, message in answers.items()})
        self.sharing.communication_round = self.iteration + 1
        if self.reset_optimizer:
            self.optimizer = self.optimizer_class(self.model.parameters(), **self.optimizer_params)
            self.trainer.reset_optimizer(self.optimizer)

    def record(self) -> None:
        """Spends the budget and appends the round's line."""
        policy = self.settings.policy
        probability = policy.probabilities(self.iteration, self.remaining)[0]
        self.remaining = policy.spend(self.remaining, np.array([self.trained]))
        self._lines.append(
            {
                "round": self.iteration + 1,
                "uid": self.uid,
                "action": "p" if self.trained else "np",
                "probability": float(probability),
                "remaining": int(self.remaining[0]) if policy.constrained else None,
                "answered": self.answered,
                "bytes": int(self.communication.total_bytes),
                "meta": int(getattr(self.communication, "total_meta", 0)),
                "data": int(getattr(self.communication, "total_data", 0)),
            }
        )

    def evaluate(self) -> None:
        """Tests the model every ``test_after`` rounds and at the last, its training loss likewise."""
        number, values = self.iteration + 1, {}
        if self._due(self.train_evaluate_after):
            self.model.eval()
            with arithmetic(self.settings.run):
                values["train_loss"] = mean_training_loss(self.trainer, self.dataset)
        if self._due(self.test_after):
            if self.link is not None and self.link.snapshots:
                place = node_files.snapshot_path(self.link.folder, number, self.uid)
                node_files.save_snapshot(place, to_vector(self.model))
            if self.settings.evaluates:
                with arithmetic(self.settings.run):
                    values |= self._scores()
        if not all(math.isfinite(value) for value in values.values()):
            raise diverged(self.uid, self.iteration, math.nan)
        if values:
            self._lines.append({"round": number} | {key: float(value) for key, value in values.items()})

    # Before, between and after the rounds.

    def prepare(self, settings: NodeSettings, link: Link | None) -> None:
        """What has to be known before the framework builds the node."""
        self.settings, self.link = settings, link
        self.remaining = settings.policy.settings.budgets.copy()
        self.answered = 0

    def begin(self) -> None:
        """Takes up the checkpoint to go on from, if there is one."""
        Path(self.weights_store_dir).mkdir(parents=True, exist_ok=True)
        path = node_files.lines_path(Path(self.log_dir), self.rank)
        start = self.link.resume.get(self.uid, 0) if self.link is not None else 0
        if start:
            self._restore(start)
        node_files.drop_rounds_after(path, start)
        self._lines = LineWriter(path)
        self._go_to(start)

    def catch_up(self) -> None:
        """Goes to the round of the neighbours when they have left this node behind.

        A neighbour cannot be in a later round than this node without having given up waiting for it. The rounds in
        between are not made up for: the node was not there, and did not train.
        """
        newest = self.peers.newest_round()
        if newest > self.iteration:
            _LOG.warning("round %d: the others are in round %d; going there", self.iteration + 1, newest + 1)
            self._go_to(min(newest, self.iterations - 1))
        self.peers.begin_round(self.iteration)

    def keep(self) -> None:
        """Tells the launcher how far this node is; writes a checkpoint when one is due."""
        if self.link is None:
            return
        every = self.link.checkpoint_every
        if every and self.iteration % every == 0 and self.iteration < self.iterations:
            self._lines.sync()
            states = self.optimizer.state_dict()["state"]
            node_files.save_node_checkpoint(
                self.link.folder,
                self.uid,
                self.iteration,
                to_vector(self.model),
                self.remaining,
                self._counters(),
                states,
            )
        self.link.completed[self.rank] = self.iteration

    def finish(self) -> None:
        """Leaves the results and the final model, and takes leave of the neighbours."""
        self._lines.sync()
        node_files.write_results(Path(self.log_dir), self.rank, self.settings.device.wh_per_round)
        tensors = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        if hasattr(self.model, "dump_weights"):
            self.model.dump_weights(self.weights_store_dir, self.uid, self.iterations - 1)
        else:
            name = f"{self.iterations - 1}_weight_{self.uid}.safetensors"
            node_files.save_atomically(tensors, Path(self.weights_store_dir) / name)
        if self.link is not None:
            node_files.save_atomically(tensors, node_files.model_path(Path(self.log_dir), self.rank))
        self.disconnect_neighbors()
        _LOG.info("finished after round %d; %d messages were dropped", self.iteration, self.peers.dropped)

    def close(self) -> None:
        """Closes files and sockets, whatever happened."""
        self._lines.__exit__(None, None, None)
        terminate = getattr(self.communication, "terminate", None)
        if terminate is not None:
            terminate()
        context = getattr(self.communication, "context", None)
        if context is not None and not context.closed:
            context.destroy(linger=_LINGER)

    # Neighbours.

    @property
    def peer_deadline(self) -> float:
        """Seconds; the framework's own sharing classes have none, and get the default."""
        return float(getattr(self.sharing, "peer_deadline", PEER_DEADLINE))

    def get_neighbors(self, node: int | None = None) -> set[int]:
        """The neighbours in the graph; everyone else when the algorithm averages globally."""
        if self.settings.policy.averages_globally:
            return set(range(self.mapping.get_n_procs())) - {self.uid}
        return set(self.graph.neighbors(self.uid))

    def connect_neighbors(self) -> None:
        """Says hello to neighbours not met before and waits for theirs, but not for ever."""
        if not hasattr(self, "peers"):
            gone = self.link.gone if self.link is not None else ()
            self.peers = Peers(self.uid, self.communication, gone)
            self.my_neighbors = self.get_neighbors()
        new = [n for n in sorted(self.my_neighbors) if not self.communication.already_connected(n)]
        for neighbor in new:
            self.connect_neighbor(neighbor)
        self.peers.wait_for_hello(new, max(START_DEADLINE, self.peer_deadline))

    def disconnect_neighbors(self) -> None:
        """Says goodbye to those present and waits for theirs, but not for ever."""
        for neighbor in sorted(self.peers.present):
            self.communication.send(neighbor, {"BYE": self.uid, "CHANNEL": BYE})
        self.peers.wait_for_bye(self.peer_deadline)

    def _send(self, neighbors: list[int], message: Message) -> None:
        """Encodes once where the communication lets one, and sends to all."""
        send = self.communication.send
        if not neighbors or "encrypt" not in inspect.signature(send).parameters:
            for neighbor in neighbors:
                send(neighbor, message)
            return
        names = [name for name in ("total_meta", "total_data") if hasattr(self.communication, name)]
        before = {name: getattr(self.communication, name) for name in names}
        encoded = self.communication.encrypt(message)
        for neighbor in neighbors:
            send(neighbor, encoded, encrypt=False)
        for name in names:
            once = getattr(self.communication, name) - before[name]
            setattr(self.communication, name, before[name] + once * len(neighbors))

    def _scores(self) -> dict[str, float]:
        values = {}
        if self.dataset.__testing__:
            values["test_acc"], values["test_loss"] = mean_scores(self.dataset.test, self.model, self.loss)
            if self.dataset.__validating__ and self.settings.validates:
                accuracy, loss = mean_scores(self.dataset.validate, self.model, self.loss)
                values |= {"validation_acc": accuracy, "validation_loss": loss}
        return values

    def _due(self, every: int) -> bool:
        number = self.iteration + 1
        return every > 0 and (number % every == 0 or number == self.iterations)

    def _go_to(self, round: int) -> None:
        self.iteration = self.sharing.communication_round = round

    def _counters(self) -> NDArray[np.int64]:
        names = ("total_bytes", "total_meta", "total_data")
        return np.array([getattr(self.communication, name, 0) for name in names], dtype=np.int64)

    def _restore(self, round: int) -> None:
        assert self.link is not None
        state = node_files.load_node_checkpoint(self.link.folder, self.uid, round)
        from_vector(self.model, state.models[0].numpy())
        self.remaining = state.remaining
        parameters = list(self.model.parameters())
        for index, values in state.optimizer.get(self.uid, {}).items():
            self.optimizer.state[parameters[index]] = values
        for name, value in zip(("total_bytes", "total_meta", "total_data"), state.bytes_sent.tolist(), strict=True):
            if hasattr(self.communication, name):
                setattr(self.communication, name, value)
        _LOG.info("going on after round %d", round)
