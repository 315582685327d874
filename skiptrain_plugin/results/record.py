"""The directory of one run.

``config.ini``            the resolved experiment
``run.json``              status, versions, command, data, host, wall time by phase
``rounds.jsonl``          one line a round: kind, who trained, energy, and at evaluations the accuracies
``nodes.jsonl``           one line a round: who trained (a hexadecimal mask), and at evaluations each node's values
``nodes/UID_results.json``  the keys DecentralizePy's plotting scripts read; written when a run ends
``models.safetensors``    the final models
``checkpoints/``          the last two checkpoints
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from skiptrain_plugin.atomic import make_folder, remove_leftovers, replacing
from skiptrain_plugin.energy.devices import TraceRow
from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.experiment.experiment import Experiment, load
from skiptrain_plugin.results.identity import changes, check_same, program
from skiptrain_plugin.results.lines import LineWriter, read_lines

RUNNING, FINISHED, INTERRUPTED, FAILED = "running", "finished", "interrupted", "failed"

NOT_COMPARED = {("RUN", "workers"), ("RUN", "checkpoint_every"), ("RUN", "kernels"), ("RUN", "device")}
"""Keys that do not change what a run computes; a run may be resumed with other values of them."""

_WRITTEN = ("*.ini", "*.json", "*.safetensors", "*.npy")
"""Files of a run, or of a machine's share of a deployment, that are replaced as a whole."""
_SUBFOLDERS = ("checkpoints", "means", "nodes", "snapshots", "weights")
"""Folders in which some of them are."""


def write_atomically(path: Path, text: str) -> None:
    """Writes ``path`` whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def encode_mask(mask: NDArray[np.bool_]) -> str:
    """A truth value a node as hexadecimal digits, node 0 in the highest bit."""
    return np.packbits(mask).tobytes().hex()


def decode_mask(text: str, nodes: int) -> NDArray[np.bool_]:
    """The inverse of ``encode_mask``."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=nodes).astype(bool)


def inputs_digest(experiment: Experiment, trace: tuple[TraceRow, ...] | None = None) -> str:
    """sha256 of the topology and the energy trace, which may come from files that change."""
    content = experiment.topology.edges.tobytes() + repr(trace or experiment.trace).encode()
    return hashlib.sha256(content).hexdigest()


def difference(one: Experiment, two: Experiment) -> str | None:
    """The first key in which two experiments differ in what they compute, as a sentence part."""
    for (name, left), right in zip(one.sections.items(), two.sections.values(), strict=True):
        a, b = left.model_dump(by_alias=True), right.model_dump(by_alias=True)
        for key in dict.fromkeys([*a, *b]):
            if (name, key) not in NOT_COMPARED and a.get(key) != b.get(key):
                return f"{name}.{key} = {a.get(key)} there and {b.get(key)} here"
    return None


class RunDirectory:
    """Writes the record of one run and holds its lock: a second run on the directory is refused.

    Temporary files that a killed run left in it are removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            make_folder(folder)
            self._lock = FileLock(str(folder / ".lock"))
            self._lock.acquire(timeout=0)
            remove_leftovers(folder, *_WRITTEN)
            for name in _SUBFOLDERS:
                remove_leftovers(folder / name, *_WRITTEN, below=True)
        except Timeout:
            raise InputError(f"{folder} is in use by another run") from None
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
        self._info: dict[str, Any] = {}

    @property
    def exists(self) -> bool:
        """Whether the directory already holds a run."""
        return (self.folder / "run.json").exists()

    def begin(self, experiment: Experiment, facts: dict[str, Any]) -> None:
        """Writes ``config.ini`` and ``run.json`` of a new run."""
        write_atomically(self.folder / "config.ini", experiment.to_ini(f"algorithm {experiment.node.algorithm}"))
        self._info = {
            "status": RUNNING,
            "algorithm": experiment.node.algorithm,
            "dataset": experiment.facts.name,
            "nodes": experiment.nodes,
            "rounds": experiment.rounds,
            "completed_rounds": 0,
            "seed": experiment.seed,
            "inputs_sha256": inputs_digest(experiment),
            "trace": [(row.name, row.wh_per_round, row.budget) for row in experiment.trace],
            "command": sys.argv,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "wall_seconds": {},
            "warnings": list(experiment.energy_notes),
            **program(),
        } | facts
        self.write_info()

    def take_up(self, facts: dict[str, Any]) -> None:
        """Reads the ``run.json`` of an unfinished run; refuses when data, kernel or torch would be others now."""
        self._info = read_info(self.folder)
        check_same(self.folder, self._info, facts)

    def go_on(self, facts: dict[str, Any], completed: int) -> None:
        """Goes on with the run taken up, after round ``completed``; what has changed is kept as an event."""
        self._info["status"] = RUNNING
        if events := changes(self._info, program() | facts, completed):
            self._info["events"] = [*self._info.get("events", []), *events]
        self._info["resumed"] = [*self._info.get("resumed", []), time.strftime("%Y-%m-%dT%H:%M:%S%z")]
        self.write_info()

    @property
    def info(self) -> dict[str, Any]:
        """What ``run.json`` says; change it and call ``write_info``."""
        return self._info

    def write_info(self) -> None:
        """Replaces ``run.json``."""
        write_atomically(self.folder / "run.json", json.dumps(self._info, indent=2) + "\n")

    def writers(self) -> tuple[LineWriter, LineWriter]:
        """The writers of ``rounds.jsonl`` and ``nodes.jsonl``."""
        return LineWriter(self.folder / "rounds.jsonl"), LineWriter(self.folder / "nodes.jsonl")

    def close(self) -> None:
        """Releases the lock."""
        self._lock.release()


def read_info(folder: Path) -> dict[str, Any]:
    """``run.json`` of a run directory."""
    path = folder / "run.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} is not the directory of a run (no run.json)") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if not isinstance(info, dict) or "status" not in info:
        raise InputError(f"{path} is damaged: it has no status")
    return info


@dataclass(frozen=True)
class Run:
    """A recorded run, finished or not."""

    folder: Path

    @cached_property
    def info(self) -> dict[str, Any]:
        """``run.json``."""
        return read_info(self.folder)

    @cached_property
    def experiment(self) -> Experiment:
        """The resolved experiment."""
        return load(config=self.folder / "config.ini")

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of ``rounds.jsonl``; rounds must follow one another from 1."""
        lines = read_lines(self.folder / "rounds.jsonl")
        for expected, line in enumerate(lines, start=1):
            if line.get("round") != expected:
                raise InputError(f"{self.folder / 'rounds.jsonl'}, line {expected}: expected round {expected}")
        return lines

    @cached_property
    def nodes(self) -> list[dict[str, Any]]:
        """The lines of ``nodes.jsonl``."""
        return read_lines(self.folder / "nodes.jsonl")

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The rounds that were evaluated."""
        return [line for line in self.rounds if "test_acc_mean" in line]

    @property
    def finished(self) -> bool:
        """Whether the run reached its last round."""
        return bool(self.info["status"] == FINISHED)


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in the given directories: each is one itself, or holds some at any depth."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a directory")
        places = [folder] if (folder / "run.json").exists() else sorted(p.parent for p in folder.rglob("run.json"))
        found += [Run(place) for place in places]
    return found


def write_node_results(run: Run, experiment: Experiment) -> None:
    """``nodes/UID_results.json`` with the keys that DecentralizePy's plotting scripts read."""
    policy, devices = experiment.policy(), experiment.devices()
    folder = run.folder / "nodes"
    make_folder(folder)
    per_round = ("total_bytes", "action", "training_prob", "remaining_training_rounds")
    evaluated = ("test_acc", "test_loss", "validation_acc", "validation_loss", "train_loss")
    results: list[dict[str, dict[str, Any]]] = [
        {key: {} for key in (*evaluated, *per_round)} | {"training_energy_traces": {"0": row.wh_per_round}}
        for row in devices
    ]
    remaining = policy.settings.budgets
    sent = np.zeros(experiment.nodes, dtype=np.int64)
    for line in run.nodes:
        number = line["round"]
        trained = decode_mask(line["trained"], experiment.nodes)
        probability = policy.probabilities(number - 1, remaining)
        remaining = policy.spend(remaining, trained)
        sent += np.array(line["bytes"], dtype=np.int64)
        for uid, result in enumerate(results):
            result["action"][str(number)] = "p" if trained[uid] else "np"
            result["training_prob"][str(number)] = float(probability[uid])
            result["total_bytes"][str(number)] = int(sent[uid])
            if policy.constrained:
                result["remaining_training_rounds"][str(number)] = int(remaining[uid])
        for key in evaluated:
            for uid, value in zip(line.get("uids", range(experiment.nodes)), line.get(key, ()), strict=False):
                results[uid][key][str(number)] = value
    for uid, result in enumerate(results):
        write_atomically(folder / f"{uid}_results.json", json.dumps(result))


def disk_error(error: Exception, folder: Path) -> RunError:
    """The error for a record that can no longer be written; everything written before is kept."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return RunError(f"the record in {folder} can no longer be written: {reason}; run again with --resume")
