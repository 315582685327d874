"""What a family of runs does otherwise than the paper, found by comparing configurations."""

from __future__ import annotations

from typing import Any

from skiptrain_plugin.algorithm.schedule import TUNED_SCHEDULES
from skiptrain_plugin.experiment.experiment import Experiment, load
from skiptrain_plugin.results.readings import Family
from skiptrain_plugin.results.style import algorithm_name
from skiptrain_plugin.results.tables import Table

_NOT_SHOWN = {
    ("NODE", "algorithm"),
    ("NODE", "consecutive_training_rounds"),
    ("NODE", "consecutive_synching_rounds"),
    ("RUN", "degree"),
    ("RUN", "test_after"),
    ("RUN", "seed"),
    ("RUN", "workers"),
    ("RUN", "kernels"),
    ("RUN", "checkpoint_every"),
    ("RUN", "validate"),
    ("RUN", "train_evaluate_after"),
    ("DATASET", "random_seed"),
    ("DATASET", "dataset_package"),
    ("DATASET", "train_dir"),
    ("DATASET", "test_dir"),
    ("DATASET", "test_batch_size"),
    ("SHARING", "sharing_package"),
}
_WORDS = {
    ("RUN", "nodes"): "nodes",
    ("RUN", "rounds"): "rounds T",
    ("RUN", "precision"): "precision of the arithmetic",
    ("RUN", "eval_samples"): "test samples evaluated (0: all)",
    ("RUN", "eval_nodes"): "nodes evaluated (0: all)",
    ("RUN", "graph_type"): "topology",
    ("NODE", "budget_horizon"): "rounds that the energy budgets are meant for (scaled to T)",
    ("NODE", "energy_traces"): "energy trace",
    ("DATASET", "partition_niid"): "partition of the data",
    ("DATASET", "model_class"): "model",
    ("TRAIN_PARAMS", "rounds"): "local steps E",
    ("TRAIN_PARAMS", "batch_size"): "batch size",
    ("OPTIMIZER_PARAMS", "lr"): "learning rate η",
}


def differences(family: Family) -> Table:
    """One row for each difference: what, here, in the paper."""
    record = family.first
    paper = load(dataset=family.dataset, scale="paper")
    rows: list[tuple[str, str, str]] = []
    if record.generated or family.dataset not in ("cifar", "femnist"):
        rows.append(("data", record.title, "CIFAR-10 and FEMNIST"))
    rows += _changed(record.experiment, paper)
    odd = [t for t in family.topologies if t not in {f"{degree}-regular" for degree in TUNED_SCHEDULES}]
    if odd:
        rows.append(("topologies", ", ".join(odd), "6-, 8- and 10-regular"))
    for one in family.records:
        schedule = one.experiment.schedule
        tuned = TUNED_SCHEDULES.get(one.degree or 0)
        if "skiptrain" in one.algorithm and tuned is not None and schedule != tuned:
            here = f"{schedule.training} and {schedule.synchronization}"
            what = f"Γ_train and Γ_sync, {algorithm_name(one.algorithm)}, {one.topology}"
            rows.append((what, here, f"{tuned.training} and {tuned.synchronization} after its grid search"))
    engine = "all nodes in one process (embedded engine)" if record.engine == "embedded" else record.engine
    rows.append(("engine", engine, "DecentralizePy, one process a node on 8 machines"))
    return Table("What differs from the paper's set-up", ("What", "Here", "In the paper"), tuple(dict.fromkeys(rows)))


def _changed(here: Experiment, paper: Experiment) -> list[tuple[str, str, str]]:
    rows = []
    for name, section in here.sections.items():
        if name in ("FIGURE", "COMMUNICATION"):
            continue
        mine, theirs = section.model_dump(by_alias=True), paper.sections[name].model_dump(by_alias=True)
        for key in dict.fromkeys([*mine, *theirs]):
            if (name, key) not in _NOT_SHOWN and mine.get(key) != theirs.get(key):
                what = _WORDS.get((name, key), f"{name}.{key}")
                rows.append((what, _text(mine.get(key)), _text(theirs.get(key))))
    return rows


def _text(value: Any) -> str:
    return "not set" if value is None else str(value)
