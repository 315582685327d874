"""The live display of a sweep: one bar over all of its runs with the time left, quiet lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich.markup import escape

from skiptrain_plugin.cli.progress import stderr_progress
from skiptrain_plugin.cli.show import human_seconds
from skiptrain_plugin.engine.simulation import Callback, Round, Simulation
from skiptrain_plugin.engine.sweep import Placed, work
from skiptrain_plugin.results.readings import read_record
from skiptrain_plugin.results.record import Run


class SweepDisplay:
    """Shows which run is under way, its round and last accuracy, and the time left for all of them."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        self._terminal = sys.stderr.isatty()
        self._work = [work(one.job.experiment) for one in placed]
        total = sum(w[one.completed :].sum() for w, one in zip(self._work, placed, strict=True))
        self._total, self._done = float(total), 0.0
        self._count, self._number = len(placed), 0
        self._missing = sum(not one.finished for one in placed)
        self._start = self._run_start = time.monotonic()
        self._name = ""
        self._progress = stderr_progress("{task.percentage:>3.0f} %", speed_estimate_period=300)
        self._task = self._progress.add_task("", total=max(self._total, 1.0), note="")

    def __enter__(self) -> SweepDisplay:
        if self._missing < self._count:
            self._say(f"{self._count - self._missing} of {self._count} runs are finished already and are reused")
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, placed: Placed) -> None:
        """See ``Watcher``."""
        self._number += 1
        self._name, self._finished = placed.job.name, placed.finished
        self._run_start = time.monotonic()
        self._progress.update(self._task, description=f"run {self._number}/{self._count} {escape(self._name)}", note="")

    def follow(self, simulation: Simulation) -> list[Callback]:
        """See ``Watcher``."""
        return [self]

    def after_round(self, simulation: Simulation, round: Round) -> None:
        """See ``Callback``."""
        self._done += float(self._work[self._number - 1][round.number - 1])
        note = f"round {round.number}/{simulation.experiment.rounds}  {round.training_wh:.2f} Wh"
        if round.evaluation is not None:
            note += f"  {round.evaluation.test.accuracy.mean():.2f} %"
        self._progress.update(self._task, completed=min(self._done, self._total), note=note)

    def end(self, run: Run | None) -> None:
        """See ``Watcher``."""
        if self._finished:
            return
        took = human_seconds(time.monotonic() - self._run_start)
        said = "failed"
        if run is not None and run.finished:
            last = read_record(run).last
            said = f"{last.accuracy:.2f} %, {run.rounds[-1]['training_wh']:.2f} Wh" if last else "no evaluation"
        elif run is not None:
            said = f"interrupted after round {run.info['completed_rounds']} of {run.info['rounds']}"
        self._say(f"run {self._number} of {self._count}, {self._name}: {said}, {took}{self._left()}")

    def _left(self) -> str:
        if not self._done or self._total <= self._done * 1.000001:
            return ""
        pace = (time.monotonic() - self._start) / self._done
        return f"; about {human_seconds(pace * (self._total - self._done))} left"

    def _say(self, text: str) -> None:
        if self._terminal:
            self._progress.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)
