"""From the files of nodes and machines to one record, in the form that the embedded engine writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skiptrain_plugin.atomic import replacing
from skiptrain_plugin.deployment.node_files import (
    EVALUATED,
    Rounds,
    lines_path,
    load_model,
    model_path,
    read_rounds,
    save_atomically,
)
from skiptrain_plugin.energy.ledger import EnergyLedger
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.results.lines import LineWriter
from skiptrain_plugin.results.record import (
    FAILED,
    FINISHED,
    Run,
    RunDirectory,
    encode_mask,
    write_atomically,
    write_node_results,
)

_SHARE = "share.json"
MeanScores = Mapping[int, dict[str, float]]
"""Round → ``mean_model_test_acc`` and ``consensus``, where they are known."""


@dataclass(frozen=True)
class Share:
    """What one machine ran."""

    folder: Path
    uids: dict[int, int]
    """Local rank → uid."""
    nodes: int
    """Nodes of the whole deployment."""
    status: str
    lost: dict[int, str]
    """uid → how the node died."""

    def save(self) -> None:
        """Writes ``share.json``."""
        values = {
            "status": self.status,
            "nodes": self.nodes,
            "uids": [self.uids[rank] for rank in sorted(self.uids)],
            "lost": {str(uid): reason for uid, reason in self.lost.items()},
        }
        write_atomically(self.folder / _SHARE, json.dumps(values, indent=2) + "\n")

    def node_rounds(self) -> dict[int, Rounds]:
        """What each node recorded, by uid."""
        return {uid: read_rounds(lines_path(self.folder, rank)) for rank, uid in self.uids.items()}


def has_share(folder: Path) -> bool:
    """Whether a machine's share was started in ``folder``."""
    return (folder / _SHARE).exists()


def forget(folder: Path) -> None:
    """Takes back that a share and a run were begun in ``folder``: no round ran, so there is nothing to go on with."""
    for name in (_SHARE, "run.json"):
        (folder / name).unlink(missing_ok=True)


def read_share(folder: Path) -> Share:
    """The share in ``folder``."""
    path = folder / _SHARE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        uids = dict(enumerate(int(uid) for uid in values["uids"]))
        lost = {int(uid): str(reason) for uid, reason in values["lost"].items()}
        return Share(folder, uids, int(values["nodes"]), str(values["status"]), lost)
    except FileNotFoundError:
        raise InputError(f"{folder} is not the directory of a machine's share (no {_SHARE})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def merge_shares(folders: Sequence[Path], out: Path) -> Run:
    """One record in ``out`` from the log directories of all machines of a deployment."""
    shares = [read_share(folder) for folder in folders]
    held = sorted(uid for share in shares for uid in share.uids.values())
    if not shares or held != list(range(shares[0].nodes)):
        raise InputError(f"the directories hold the nodes {held}; all of 0 to n − 1 are needed, each once")
    experiment = Run(folders[0]).experiment
    directory = RunDirectory(out)
    try:
        if directory.exists:
            raise InputError(f"{out} already holds a run")
        directory.begin(experiment, {"engine": "decentralizepy", "machines": len(shares)} | _facts(folders[0]))
        status = FINISHED if all(share.status == FINISHED for share in shares) else FAILED
        conclude(directory, experiment, shares, status, {})
    finally:
        directory.close()
    return Run(out)


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / "facts.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def conclude(
    directory: RunDirectory, experiment: Experiment, shares: Sequence[Share], status: str, means: MeanScores
) -> None:
    """Writes lines, final models, results and ``run.json`` of a deployment that has ended, one way or another."""
    lost = {uid: reason for share in shares for uid, reason in share.lost.items()}
    completed = write_lines(directory, experiment, shares, set(lost), means)
    if status == FINISHED:
        _write_models(directory.folder / "models.safetensors", shares)
    write_node_results(Run(directory.folder), experiment)
    directory.info["status"] = status
    directory.info["completed_rounds"] = completed
    if lost:
        directory.info["lost_nodes"] = {str(uid): reason for uid, reason in sorted(lost.items())}
        directory.info["reason"] = "; ".join(reason for _, reason in sorted(lost.items()))
    directory.write_info()


def write_lines(
    directory: RunDirectory, experiment: Experiment, shares: Sequence[Share], lost: set[int], means: MeanScores
) -> int:
    """Writes ``rounds.jsonl`` and ``nodes.jsonl`` anew; returns how many rounds every node that lives has completed."""
    nodes = {uid: rounds for share in shares for uid, rounds in share.node_rounds().items()}
    living = [uid for uid in nodes if uid not in lost] or list(nodes)
    completed = min(max(nodes[uid], default=0) for uid in living)
    policy = experiment.policy()
    ledger = EnergyLedger(experiment.wh_per_training_round)
    sent_before = np.zeros(experiment.nodes, dtype=np.int64)
    with _anew(directory.folder / "rounds.jsonl") as round_lines, _anew(directory.folder / "nodes.jsonl") as node_lines:
        for number in range(1, completed + 1):
            lines = [nodes[uid].get(number, {}) for uid in range(experiment.nodes)]
            trained = np.array([line.get("action") == "p" for line in lines])
            sent_now = np.array([line.get("bytes", before) for line, before in zip(lines, sent_before, strict=True)])
            sent = np.maximum(sent_now - sent_before, 0)
            sent_before = sent_now
            ledger.charge(trained, sent)
            evaluated = _evaluated(lines)
            round_lines.append(
                {
                    "round": number,
                    "kind": policy.kind(number - 1).value,
                    "trained": int(trained.sum()),
                    "training_wh": float(ledger.training_wh.sum()),
                    "communication_wh": float(ledger.communication_wh.sum()),
                }
                | _summary(evaluated)
                | (means.get(number, {}) if "test_acc" in evaluated else {})
            )
            node_lines.append({"round": number, "trained": encode_mask(trained), "bytes": _uniform(sent)} | evaluated)
    return completed


@contextmanager
def _anew(path: Path) -> Iterator[LineWriter]:
    """A writer of lines that take the place of ``path`` when all are written."""
    with replacing(path) as temporary, LineWriter(temporary) as lines:
        yield lines


def _uniform(sent: NDArray[np.int64]) -> int | list[int]:
    return int(sent[0]) if (sent == sent[0]).all() else [int(value) for value in sent]


def _evaluated(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of the nodes that were evaluated: their uids, then a list for each kind of value."""
    keys = [key for key in EVALUATED if any(key in line for line in lines)]
    if not keys:
        return {}
    uids = [uid for uid, line in enumerate(lines) if all(key in line for key in keys)]
    return {"uids": uids} | {key: [lines[uid][key] for uid in uids] for key in keys} if uids else {}


def _summary(evaluated: Mapping[str, Any]) -> dict[str, float]:
    values = {}
    for name in ("test", "validation"):
        if f"{name}_acc" in evaluated:
            values[f"{name}_acc_mean"] = float(np.mean(evaluated[f"{name}_acc"]))
            values[f"{name}_acc_std"] = float(np.std(evaluated[f"{name}_acc"]))
            values[f"{name}_loss_mean"] = float(np.mean(evaluated[f"{name}_loss"]))
    if "train_loss" in evaluated:
        values["train_loss_mean"] = float(np.mean(evaluated["train_loss"]))
    return values


def _write_models(path: Path, shares: Sequence[Share]) -> None:
    """Every parameter and buffer by name, stacked over the nodes; nothing when a node left no model."""
    paths = {uid: model_path(share.folder, rank) for share in shares for rank, uid in share.uids.items()}
    if not all(place.exists() for place in paths.values()):
        path.unlink(missing_ok=True)
        return
    models = [load_model(paths[uid]) for uid in sorted(paths)]
    save_atomically({name: torch.stack([model[name] for model in models]) for name in models[0]}, path)
