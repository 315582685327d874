"""What one node reads from the configuration: its policy, device and seed, resolved as the embedded engine does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skiptrain_plugin.algorithm.policies import Policy
from skiptrain_plugin.algorithm.schedule import tuned_schedule
from skiptrain_plugin.energy.devices import TraceRow
from skiptrain_plugin.engine.evaluation import evaluated_nodes
from skiptrain_plugin.experiment.catalogue import DATASETS
from skiptrain_plugin.experiment.experiment import from_values
from skiptrain_plugin.experiment.sections import RunSection, guess, read_value

Config = Mapping[str, Mapping[str, Any]]
"""Section → key → value, typed by the framework's reader or text."""

ORIGIN = "the configuration"


@dataclass(frozen=True)
class NodeSettings:
    """What a node needs beside what the framework gives it."""

    uid: int
    policy: Policy
    """The algorithm, deciding for this node alone."""
    device: TraceRow
    """Energy of a training round (Wh) and budget τ (rounds)."""
    seed: int
    """Seed of participation and minibatches."""
    evaluates: bool
    """False for a node that ``eval_nodes`` leaves out."""
    validates: bool
    """Whether the validation set is evaluated where the dataset has one."""
    run: RunSection


def typed(config: Config) -> dict[str, dict[str, Any]]:
    """``config`` with every text typed as the framework's reader types it; what an optimizer gets may be a tuple."""
    return {
        name: {key: (guess if name == "OPTIMIZER_PARAMS" else read_value)(value) for key, value in section.items()}
        for name, section in config.items()
    }


def node_settings(
    config: Config, uid: int, nodes: int, mean_degree: float, rounds: int, parameters: int | None = None
) -> NodeSettings:
    """The settings of node ``uid`` among ``nodes``, for T = ``rounds`` and a model of |x| = ``parameters``.

    Only NODE, RUN, ENERGY, E, |ξ| and ``random_seed`` are read, so that datasets, models and sharing classes may be
    anybody's. Without ``parameters`` and the key of [ENERGY], |x| is that of the dataset's model in the paper.
    """
    values = {name: {key: _text(value) for key, value in section.items()} for name, section in config.items()}
    node, run, data, train = (values.get(name, {}) for name in ("NODE", "RUN", "DATASET", "TRAIN_PARAMS"))
    facts = next((f for f in DATASETS.values() if f.dataset_class == data.get("dataset_class")), DATASETS["cifar"])
    tuned = tuned_schedule(mean_degree)
    node = {
        **node,
        "consecutive_training_rounds": node.get("consecutive_training_rounds") or str(tuned.training),
        "consecutive_synching_rounds": node.get("consecutive_synching_rounds") or str(tuned.synchronization),
    }
    known = {
        "dataset_class": facts.dataset_class,
        "model_class": facts.architecture.name,
        "random_seed": data.get("random_seed", ""),
    }
    sections: dict[str, dict[str, str]] = {
        "DATASET": known,
        "TRAIN_PARAMS": {key: train[key] for key in ("rounds", "batch_size", "full_epochs") if key in train},
        "NODE": node,
        "RUN": {**run, "nodes": str(nodes), "rounds": str(rounds), "graph_file": "", "graph_type": "ring"},
        "ENERGY": {"parameters": _text(parameters)} | values.get("ENERGY", {}),
    }
    experiment = from_values(sections, ORIGIN, [Path.cwd()])
    alone = np.array([uid], dtype=np.int64)
    return NodeSettings(
        uid,
        experiment.policy(alone),
        experiment.devices(alone)[0],
        experiment.seed,
        uid in evaluated_nodes(experiment),
        experiment.run.validate_models or "validate" not in run,
        experiment.run,
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)
