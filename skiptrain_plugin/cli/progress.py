"""The live display of a run: a bar on a terminal, quiet lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from skiptrain_plugin.cli.show import human_seconds
from skiptrain_plugin.engine.simulation import Round, Simulation


def stderr_progress(position: str, speed_estimate_period: float = 30.0) -> Progress:
    """A bar on standard error, silent where that is no terminal; ``position`` says how far a task is."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(position),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        speed_estimate_period=speed_estimate_period,
    )


class RunDisplay:
    """Shows rounds, time left, energy so far and the last accuracy of one or more runs."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._progress = stderr_progress("round {task.completed:.0f}/{task.total:.0f}")

    def __enter__(self) -> RunDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def follow(self, simulation: Simulation, estimate: float | None) -> _Follower:
        """A callback that shows the rounds of ``simulation``; says first how long they will take (seconds)."""
        if estimate is not None:
            rounds = simulation.experiment.rounds - simulation.completed_rounds
            self._progress.console.print(
                f"{simulation.experiment.node.algorithm}: {rounds} rounds, about {human_seconds(estimate)}",
                highlight=False,
            )
        return _Follower(self._progress, simulation, self._terminal)


class _Follower:
    def __init__(self, progress: Progress, simulation: Simulation, terminal: bool) -> None:
        self._progress, self._terminal = progress, terminal
        self._name = simulation.experiment.node.algorithm
        self._first, self._start = simulation.completed_rounds, time.monotonic()
        self._accuracy = ""
        total = simulation.experiment.rounds
        self._task = progress.add_task(self._name, total=total, completed=self._first, note="")

    def after_round(self, simulation: Simulation, round: Round) -> None:
        """See ``Callback``."""
        if round.evaluation is not None:
            scores = round.evaluation.test.accuracy
            self._accuracy = f"{scores.mean():.2f} % ± {scores.std():.2f}"
        note = f"{round.training_wh:.2f} Wh  {self._accuracy}"
        self._progress.update(self._task, completed=round.number, note=note)
        if not self._terminal and round.evaluation is not None:
            total = simulation.experiment.rounds
            pace = (time.monotonic() - self._start) / max(1, round.number - self._first)
            left = human_seconds(pace * (total - round.number))
            print(
                f"{self._name}: round {round.number}/{total}, {round.training_wh:.2f} Wh, test accuracy"
                f" {self._accuracy}, {left} left",
                file=sys.stderr,
                flush=True,
            )
