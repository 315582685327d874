"""What happens beside the loop: the record, checkpoints, and stopping on a signal."""

from __future__ import annotations

import logging
import signal
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from skiptrain_plugin.engine.checkpoint import save_checkpoint
from skiptrain_plugin.engine.evaluation import SENSELESS, Evaluation, senseless_loss
from skiptrain_plugin.engine.simulation import Round, Simulation
from skiptrain_plugin.results.lines import LineWriter
from skiptrain_plugin.results.record import RunDirectory, encode_mask

_LOG = logging.getLogger(__name__)


class Recorder:
    """Appends one line a round to ``rounds.jsonl`` and ``nodes.jsonl``."""

    def __init__(self, rounds: LineWriter, nodes: LineWriter) -> None:
        self.rounds, self.nodes = rounds, nodes

    def after_round(self, simulation: Simulation, round: Round) -> None:
        """See ``Callback``."""
        sent = round.bytes_sent
        uniform = int(sent[0]) if (sent == sent[0]).all() else sent.tolist()
        nodes: dict[str, Any] = {"round": round.number, "trained": encode_mask(round.trained), "bytes": uniform}
        line: dict[str, Any] = {
            "round": round.number,
            "kind": round.kind.value,
            "trained": int(round.trained.sum()),
            "training_wh": round.training_wh,
            "communication_wh": round.communication_wh,
        }
        if round.evaluation is not None:
            line |= summary(round.evaluation)
            nodes |= details(round.evaluation)
        if round.train_losses is not None:
            line["train_loss_mean"] = float(np.mean(round.train_losses))
            nodes |= {"uids": simulation.evaluator.uids, "train_loss": round.train_losses}
        self.nodes.append(nodes)
        self.rounds.append(line)

    def sync(self) -> None:
        """Waits until every line is on the disk."""
        self.nodes.sync()
        self.rounds.sync()


def summary(evaluation: Evaluation) -> dict[str, float]:
    """Mean and standard deviation over nodes, for ``rounds.jsonl``."""
    values = {}
    for name, scores in (("test", evaluation.test), ("validation", evaluation.validation)):
        if scores is not None:
            values[f"{name}_acc_mean"] = float(scores.accuracy.mean())
            values[f"{name}_acc_std"] = float(scores.accuracy.std())
            values[f"{name}_loss_mean"] = float(scores.loss.mean())
    return values | {"mean_model_test_acc": evaluation.mean_model_accuracy, "consensus": evaluation.consensus}


def details(evaluation: Evaluation) -> dict[str, Any]:
    """Each node's values, for ``nodes.jsonl``."""
    values: dict[str, Any] = {"uids": evaluation.uids}
    for name, scores in (("test", evaluation.test), ("validation", evaluation.validation)):
        if scores is not None:
            values[f"{name}_acc"] = scores.accuracy.tolist()
            values[f"{name}_loss"] = scores.loss.tolist()
    return values


class Checkpointer:
    """Writes a checkpoint every ``checkpoint_every`` rounds; the record up to it is on disk first."""

    def __init__(self, directory: RunDirectory, recorder: Recorder) -> None:
        self._folder = directory.folder / "checkpoints"
        self._recorder = recorder

    def after_round(self, simulation: Simulation, round: Round) -> None:
        """See ``Callback``."""
        every = simulation.experiment.run.checkpoint_every
        if every and round.number % every == 0:
            self.save(simulation)

    def save(self, simulation: Simulation) -> None:
        """Writes a checkpoint now."""
        with simulation.timed("checkpoint"):
            self._recorder.sync()
            save_checkpoint(self._folder, simulation.state())


class LossWatch:
    """Says once in a run, in the log and under ``warnings`` of ``run.json``, that a loss has become senseless."""

    _VERDICT = "training has gone astray"

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def after_round(self, simulation: Simulation, round: Round) -> None:
        """See ``Callback``."""
        if round.evaluation is not None:
            self._check(simulation, round.number, "test", float(round.evaluation.test.loss.mean()))
        if round.train_losses is not None:
            self._check(simulation, round.number, "training", float(np.mean(round.train_losses)))

    def _check(self, simulation: Simulation, number: int, name: str, loss: float) -> None:
        most, said = senseless_loss(simulation.data.source.classes), self._directory.info.setdefault("warnings", [])
        if loss <= most or any(self._VERDICT in sentence for sentence in said):
            return
        said.append(
            f"the mean {name} loss in round {number} is {loss:.6g}; above {most:.3g}, {SENSELESS:g} times that of"
            f" guessing, {self._VERDICT}: a smaller OPTIMIZER_PARAMS.lr may help"
        )
        _LOG.warning("%s: %s", simulation.experiment.node.algorithm, said[-1])
        self._directory.write_info()


class StopOnSignal:
    """Turns the first SIGINT or SIGTERM into a request to stop; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested

    def __enter__(self) -> StopOnSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
