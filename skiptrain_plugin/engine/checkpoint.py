"""Checkpoints: the whole state of a run in one safetensors file, written atomically, the last two kept."""

from __future__ import annotations

import json
import logging
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from skiptrain_plugin.atomic import make_folder, replacing
from skiptrain_plugin.errors import RunError

_KEPT = 2
_LOG = logging.getLogger(__name__)


@dataclass
class State:
    """What a run needs to go on; random numbers need no state."""

    completed_rounds: int
    models: Tensor
    """n×P."""
    remaining: NDArray[np.int64]
    """Budgets τ left."""
    training_rounds: NDArray[np.int64]
    """Rounds in which each node has trained."""
    bytes_sent: NDArray[np.int64]
    trained_already: NDArray[np.bool_]
    """Nodes that have trained in the round under way when the run was interrupted inside it."""
    optimizer: dict[int, dict[int, dict[str, Any]]]
    """State of each node's optimizer by the index of the parameter."""
    wall_seconds: dict[str, float]


def save_checkpoint(folder: Path, state: State) -> Path:
    """Writes ``state`` to ``folder`` and removes all but the newest two checkpoints."""
    make_folder(folder)
    tensors = {
        "models": state.models,
        "remaining": torch.from_numpy(state.remaining),
        "training_rounds": torch.from_numpy(state.training_rounds),
        "bytes_sent": torch.from_numpy(state.bytes_sent),
        "trained_already": torch.from_numpy(state.trained_already),
    }
    plain: dict[str, Any] = {}
    for uid, parameters in state.optimizer.items():
        for index, values in parameters.items():
            for key, value in values.items():
                name = f"optimizer/{uid}/{index}/{key}"
                if isinstance(value, Tensor):
                    tensors[name] = value.contiguous()
                else:
                    plain[name] = value
    facts = {
        "completed_rounds": state.completed_rounds,
        "wall_seconds": state.wall_seconds,
        "optimizer": plain,
        "crc": {name: _crc(tensor) for name, tensor in tensors.items()},
    }
    path = folder / f"round-{state.completed_rounds:08d}.safetensors"
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"skiptrain": json.dumps(facts)})
    for old in checkpoints(folder)[_KEPT:]:
        old.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files, newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def load_newest(folder: Path) -> State | None:
    """The newest whole checkpoint; a damaged one is named and the older used. None when there is none at all."""
    damaged = []
    for path in checkpoints(folder):
        try:
            return load_checkpoint(path)
        except RunError as error:
            _LOG.warning("%s; trying the one before it", error)
            damaged.append(path.name)
    if damaged:
        raise RunError(f"no usable checkpoint in {folder}: {', '.join(damaged)} are damaged; start a new run")
    return None


def load_checkpoint(path: Path) -> State:
    """The state in ``path``; every tensor is held against its checksum."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["skiptrain"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, crc in facts["crc"].items():
            if _crc(tensors[name]) != crc:
                raise RunError(f"checkpoint {path} is damaged: '{name}' does not match its checksum")
        if tensors.keys() != facts["crc"].keys():
            raise RunError(f"checkpoint {path} is damaged: its tensors are not those that were written")
        return State(
            int(facts["completed_rounds"]),
            tensors["models"],
            tensors["remaining"].numpy(),
            tensors["training_rounds"].numpy(),
            tensors["bytes_sent"].numpy(),
            tensors["trained_already"].numpy(),
            _optimizer_state(tensors, facts["optimizer"]),
            dict(facts["wall_seconds"]),
        )
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"checkpoint {path} is damaged: {error}") from None


def _optimizer_state(tensors: dict[str, Tensor], plain: dict[str, Any]) -> dict[int, dict[int, dict[str, Any]]]:
    by_node: dict[int, dict[int, dict[str, Any]]] = {}
    for name, value in (tensors | plain).items():
        if name.startswith("optimizer/"):
            _, uid, index, key = name.split("/")
            by_node.setdefault(int(uid), {}).setdefault(int(index), {})[key] = value
    return by_node


def _crc(tensor: Tensor) -> int:
    return zlib.crc32(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
