"""What a node writes: its lines, its results in the framework's form, checkpoints, its final model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from skiptrain_plugin.atomic import make_folder, replacing
from skiptrain_plugin.engine.checkpoint import State, checkpoints, load_checkpoint, save_checkpoint
from skiptrain_plugin.errors import RunError
from skiptrain_plugin.results.lines import cut_lines, read_lines
from skiptrain_plugin.results.record import write_atomically

PER_ROUND = {
    "bytes": "total_bytes",
    "meta": "total_meta",
    "data": "total_data_per_n",
    "action": "action",
    "probability": "training_prob",
    "remaining": "remaining_training_rounds",
}
"""Key of a node's line → key of the framework's results."""
EVALUATED = ("test_acc", "test_loss", "validation_acc", "validation_loss", "train_loss")

Rounds = dict[int, dict[str, Any]]
"""Round, counted from 1 → what a node recorded of it."""


def lines_path(folder: Path, rank: int) -> Path:
    """Where the node of this local rank appends its lines."""
    return folder / f"{rank}_rounds.jsonl"


def model_path(folder: Path, rank: int) -> Path:
    """Where the node of this local rank leaves its final model."""
    return folder / f"{rank}_model.safetensors"


def snapshot_path(folder: Path, round: int, uid: int) -> Path:
    """Where node ``uid`` leaves its parameters at the evaluation of ``round``."""
    return folder / "snapshots" / f"{round:08d}" / f"{uid}.npy"


def checkpoint_folder(folder: Path, round: int, uid: int) -> Path:
    """Where the checkpoint of node ``uid`` after ``round`` completed rounds is."""
    return folder / "checkpoints" / f"{round:08d}" / str(uid)


def read_rounds(path: Path) -> Rounds:
    """The lines of a node; a round has one line, and a second one when it was evaluated."""
    rounds: Rounds = {}
    for line in read_lines(path):
        rounds.setdefault(int(line["round"]), {}).update(line)
    return rounds


def drop_rounds_after(path: Path, round: int) -> None:
    """Drops the lines of rounds after ``round``, which a resumed node goes through again."""
    cut_lines(path, sum(int(line["round"]) <= round for line in read_lines(path)))


def write_results(folder: Path, rank: int, wh_per_round: float) -> None:
    """``RANK_results.json`` as the framework's own driver leaves it, with the keys of the paper's authors."""
    results: dict[str, dict[str, Any]] = {key: {} for key in (*EVALUATED, *PER_ROUND.values())}
    for number, line in read_rounds(lines_path(folder, rank)).items():
        for key, name in (*PER_ROUND.items(), *((key, key) for key in EVALUATED)):
            if line.get(key) is not None:
                results[name][str(number)] = line[key]
    results["training_energy_traces"] = {"0": wh_per_round}
    write_atomically(folder / f"{rank}_results.json", json.dumps(results))


def save_atomically(tensors: dict[str, Tensor], path: Path) -> None:
    """A safetensors file, whole or not at all."""
    with replacing(path) as temporary:
        save_file(tensors, temporary)


def save_snapshot(path: Path, vector: NDArray[np.float32], *, durable: bool = False) -> None:
    """A vector of parameters, whole or not at all; ``durable`` when it must outlast a power loss."""
    if durable:
        make_folder(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=durable) as temporary, temporary.open("wb") as file:
        np.save(file, vector, allow_pickle=False)


def load_model(path: Path) -> dict[str, Tensor]:
    """The final model of a node by name."""
    return load_file(path)


def save_node_checkpoint(
    folder: Path,
    uid: int,
    round: int,
    vector: NDArray[np.float32],
    remaining: NDArray[np.int64],
    counters: NDArray[np.int64],
    optimizer: Mapping[int, dict[str, Any]],
) -> None:
    """The state of one node after ``round`` completed rounds."""
    place = checkpoint_folder(folder, round, uid)
    nothing = np.zeros(1, dtype=np.int64)
    models = torch.from_numpy(vector)[None]
    parts = {index: values for index, values in optimizer.items() if values}
    save_checkpoint(place, State(round, models, remaining, nothing, counters, nothing.astype(bool), {uid: parts}, {}))


def load_node_checkpoint(folder: Path, uid: int, round: int) -> State:
    """What ``save_node_checkpoint`` wrote."""
    found = checkpoints(checkpoint_folder(folder, round, uid))
    if not found:
        raise RunError(f"there is no checkpoint of node {uid} after round {round} in {folder}")
    return load_checkpoint(found[0])


def checkpointed_rounds(folder: Path, uid: int) -> set[int]:
    """The rounds after which ``uid`` has a whole checkpoint."""
    rounds = set()
    for place in (folder / "checkpoints").glob(f"*/{uid}"):
        try:
            state = load_node_checkpoint(folder, uid, int(place.parent.name))
        except (RunError, ValueError):
            continue
        rounds.add(state.completed_rounds)
    return rounds


def resume_rounds(folder: Path, uids: Iterable[int]) -> dict[int, int]:
    """For each node the round to go on from: the last that all of them have, else each node's own last."""
    have = {uid: checkpointed_rounds(folder, uid) for uid in uids}
    common = set.intersection(*have.values()) if have else set()
    if common:
        return dict.fromkeys(have, max(common))
    if not any(have.values()) and any((folder / "checkpoints").glob("*/*/round-*")):
        raise RunError(f"no usable checkpoint in {folder / 'checkpoints'}: all are damaged; start a new run")
    return {uid: max(rounds) for uid, rounds in have.items() if rounds}
