"""The end of a launch, step by step: the record first, that it is finished next, and last what is not needed any more.

Whoever is killed after any of the steps can take them again from the first one and gets the same record.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.deployment import snapshots
from skiptrain_plugin.deployment.merge import Share, conclude, read_share, write_lines
from skiptrain_plugin.deployment.node_files import lines_path, model_path, read_rounds
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.results.record import FINISHED, RUNNING, RunDirectory, read_info

MeanAccuracies = Callable[[Mapping[int, NDArray[np.float32]]], dict[int, float]]
"""Round → mean parameters in; round → accuracy of the mean model in percent out, where it can be had."""


@dataclass(frozen=True)
class Conclusion:
    """What is left to do when the nodes have ended, one way or another."""

    share: Share
    """With the status that the run ends with."""
    directory: RunDirectory
    experiment: Experiment | None
    """None where this machine has no record of the whole run to write."""
    mean_accuracies: MeanAccuracies

    def run(self) -> None:
        """All steps."""
        for step in self.steps():
            step()

    def steps(self) -> list[Callable[[], None]]:
        """The steps in their order."""
        record = [] if self.experiment is None else [self._gather, self._write_lines, self._write_record]
        return [*record, self.share.save, self._tidy]

    def _gather(self) -> None:
        snapshots.gather(self.share.folder, [u for u in self.share.uids.values() if u not in self.share.lost])

    def _write_lines(self) -> None:
        """The rounds without the mean model, whose evaluation may fail."""
        assert self.experiment is not None
        write_lines(self.directory, self.experiment, [self.share], set(self.share.lost), self._consensus())

    def _write_record(self) -> None:
        assert self.experiment is not None
        scores = self._consensus()
        vectors = {number: vector for number, (_, vector) in snapshots.means(self.share.folder).items()}
        for number, accuracy in self.mean_accuracies(vectors).items():
            scores[number]["mean_model_test_acc"] = accuracy
        conclude(self.directory, self.experiment, [self.share], self.share.status, scores)

    def _consensus(self) -> dict[int, dict[str, float]]:
        found = snapshots.means(self.share.folder)
        return {number: {"consensus": consensus} for number, (consensus, _) in found.items()}

    def _tidy(self) -> None:
        if self.share.status == FINISHED:
            tidy(self.share.folder)


def tidy(folder: Path) -> None:
    """Removes what only an unfinished run needs."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    shutil.rmtree(folder / "snapshots", ignore_errors=True)


def any_round(folder: Path) -> bool:
    """Whether a round was ever recorded in ``folder``, by a launch or by the embedded engine."""
    lines = any(path.stat().st_size for path in folder.glob("*rounds.jsonl"))
    return lines or any((folder / "checkpoints").glob("*"))


def is_concluded(folder: Path, recorded: bool) -> bool:
    """Whether the share in ``folder`` is finished and, where one is ``recorded`` there, the whole run's record is."""
    if read_share(folder).status != FINISHED:
        return False
    return not recorded or ((folder / "run.json").exists() and read_info(folder)["status"] == FINISHED)


def rounds_are_done(share: Share, rounds: int) -> bool:
    """Whether every node has done its last round and left its model, so that only concluding is left.

    Where the run was never concluded, the nodes that were lost on the way are not waited for.
    """
    waited = set(share.uids.values())
    if share.status in (RUNNING, FINISHED) and len(share.lost) < len(waited):
        waited -= set(share.lost)
    return all(_is_done(share.folder, rank, rounds) for rank, uid in share.uids.items() if uid in waited)


def _is_done(folder: Path, rank: int, rounds: int) -> bool:
    return model_path(folder, rank).exists() and max(read_rounds(lines_path(folder, rank)), default=0) == rounds
