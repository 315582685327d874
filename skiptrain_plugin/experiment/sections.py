"""The sections of the INI as frozen typed objects.

DATASET, OPTIMIZER_PARAMS, TRAIN_PARAMS, COMMUNICATION and SHARING are DecentralizePy's; NODE has the
keys of the paper's authors; RUN holds what the framework takes as flags. An empty value means "not given".
"""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Section(BaseModel):
    """Common behaviour: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    open_ended: ClassVar[bool] = False
    """Whether further keys are passed on (to an optimizer, a foreign class) instead of refused."""
    nothing_counts: ClassVar[frozenset[str]] = frozenset()
    """The keys for which an empty value, or None, is a value and not one that was not given."""

    @classmethod
    def keys(cls) -> list[str]:
        """The keys of the section as they stand in the INI."""
        return [field.alias or name for name, field in cls.model_fields.items()]


class OpenSection(Section):
    """A section whose further keys are keyword arguments of a class named in it."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)
    open_ended = True

    @property
    def options(self) -> dict[str, Any]:
        """The further keys with their values: numbers, truth values, lists, text."""
        return {key: guess(value) for key, value in (self.model_extra or {}).items()}


def read_value(value: Any) -> Any:
    """``value`` as the framework's reader types it: int in any base, float, truth value, None; else the text itself.

    A list stays text: classes of the framework that take one evaluate it themselves.
    """
    if not isinstance(value, str):
        return value
    for convert in (int, lambda text: int(text, 0), float):
        try:
            return convert(value)
        except ValueError:
            continue
    return _WORDS.get(value.lower(), value)


_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": None}


def guess(value: Any) -> Any:
    """As ``read_value``, and a tuple or list where the text is one: what optimizers need (``betas``)."""
    if isinstance(value, str) and value[:1] in ("(", "["):
        with suppress(ValueError, SyntaxError):
            return ast.literal_eval(value)
    return read_value(value)


def partition_name(value: Any) -> str:
    """The partition that ``partition_niid`` names to the framework: True is ``kshard``; False or nothing is ``iid``."""
    read = read_value(value)
    if read is True:
        return "kshard"
    return str(read).lower() if read else "iid"


class DatasetSection(Section):
    """[DATASET]: the data, its partition and the model."""

    nothing_counts = frozenset({"partition_niid"})
    dataset_package: str = "skiptrain_plugin.datasets"
    dataset_class: str
    """CIFAR10, Femnist, Glyphs or Synthetic."""
    model_class: str
    model_package: str | None = None
    """Where ``model_class`` is, when it is not one of this project's (LeNet, CNN)."""
    random_seed: int = Field(1234, ge=0, lt=2**32)
    """Seed of partition, validation split and initial weights."""
    train_dir: str | None = None
    test_dir: str | None = None
    sizes: str | None = None
    """A list of fractions, one a node, in Python's notation."""
    only_local: bool = False
    test_batch_size: int = Field(1024, ge=1)
    partition_niid: str | None = None
    """kshard, iid, simple, dirichlet or writer; False or nothing means iid, as in the framework."""
    shards: int = Field(1, ge=1)
    """Shards dealt to each node by ``kshard``."""
    alpha: float = Field(100.0, gt=0)
    """Concentration of ``dirichlet``; smaller is less even."""
    validation_source: Literal["Test", "Train"] | None = None
    validation_size: float | None = Field(None, gt=0, lt=1)
    """Fraction of the source that becomes the validation set."""


class OptimizerSection(OpenSection):
    """[OPTIMIZER_PARAMS]: an optimizer class; further keys are its arguments."""

    optimizer_package: str = "torch.optim"
    optimizer_class: str = "SGD"
    lr: float = Field(0.1, gt=0)
    """η, learning rate."""


class TrainSection(Section):
    """[TRAIN_PARAMS]: what a training round computes."""

    training_package: str = "decentralizepy.training.Training"
    training_class: str = "Training"
    rounds: int = Field(1, ge=1)
    """E, local steps (or passes over the data when ``full_epochs``)."""
    full_epochs: bool = False
    batch_size: int = Field(1, ge=1)
    """|ξ|, samples."""
    shuffle: bool = False
    loss_package: str = "torch.nn"
    loss_class: str = "CrossEntropyLoss"


class CommunicationSection(OpenSection):
    """[COMMUNICATION]: used by DecentralizePy deployments only."""

    comm_package: str = "decentralizepy.communication.TCP"
    comm_class: str = "TCP"
    addresses_filepath: str | None = None


class SharingSection(OpenSection):
    """[SHARING]: how models are exchanged and averaged."""

    sharing_package: str = "skiptrain_plugin.sharing"
    sharing_class: str = "SkipTrainSharing"


class NodeSection(OpenSection):
    """[NODE]: the algorithm; further keys must be ones that the algorithm declares."""

    algorithm: str = "skiptrain"
    consecutive_training_rounds: int | None = None
    """Γ_train, rounds; by default the paper's tuned value for the degree."""
    consecutive_synching_rounds: int | None = None
    """Γ_sync, rounds."""
    averaging: Literal["Metro-Hasting"] = "Metro-Hasting"
    energy_traces: str | None = None
    """A trace CSV: a path, or the name of one that comes with the project (cifar.csv, femnist.csv); by default
    the energy of a training round is derived from [ENERGY] devices."""
    budget_horizon: int | None = Field(None, ge=1)
    """The rounds the trace's budgets are meant for: with T rounds, τ becomes τ · T / horizon, rounded."""


class RunSection(Section):
    """[RUN]: what DecentralizePy takes as flags, and how the embedded engine works."""

    nodes: int | None = Field(None, ge=1, le=1_000_000)
    degree: int = Field(6, ge=1)
    graph_file: str | None = None
    graph_type: str | None = None
    """Of a graph file: edges or adjacency. Otherwise: regular, ring, complete, star or small_world."""
    rounds: int | None = Field(None, ge=1)
    """T."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """Seed of participation, minibatches and topology; by default DATASET.random_seed."""
    test_after: int | None = Field(None, ge=1)
    """Rounds between evaluations; by default Γ_train + Γ_sync."""
    train_evaluate_after: int = Field(0, ge=0)
    """Rounds between evaluations of the training loss; 0: never."""
    eval_nodes: int = Field(0, ge=0)
    """Evaluate only this many nodes, a fixed random choice; 0: all."""
    eval_samples: int = Field(0, ge=0)
    """Evaluate on only this many samples, a fixed random choice; 0: all."""
    validate_models: bool = Field(False, alias="validate")
    """Evaluate on the validation set too."""
    reset_optimizer: bool = False
    """Begin each training round with a new optimizer state."""
    checkpoint_every: int = Field(50, ge=0)
    """Rounds between checkpoints; 0: none but on interruption."""
    precision: Literal["fp32", "bf16"] = "fp32"
    kernels: Literal["auto", "native", "torch"] = "auto"
    """What computes the paper's models on a CPU: the native kernel, torch, or the native one where it can be built."""
    device: Literal["cpu", "cuda"] = "cpu"
    workers: int = Field(0, ge=0)
    """Worker threads; 0: one a core."""

    @field_validator("graph_type")
    @classmethod
    def _lower(cls, value: str | None) -> str | None:
        return value.lower() if value else value


class EnergySection(Section):
    """[ENERGY]: what a training round costs each device."""

    devices: str = "devices.csv"
    """A device table: a path, or the name of the one that comes with the project."""
    battery_share: float | None = Field(None, gt=0, le=1)
    """The part of the battery that may be spent on training; by default the paper's for the dataset."""
    parameters: int | None = Field(None, ge=1)
    """|x| that the energy is computed for; by default the model's own number of parameters."""


class FigureSection(OpenSection):
    """[FIGURE]: what a figure's template varies; read by the figure commands, ignored by a plain run."""


SECTIONS: dict[str, type[Section]] = {
    "DATASET": DatasetSection,
    "OPTIMIZER_PARAMS": OptimizerSection,
    "TRAIN_PARAMS": TrainSection,
    "COMMUNICATION": CommunicationSection,
    "SHARING": SharingSection,
    "NODE": NodeSection,
    "RUN": RunSection,
    "ENERGY": EnergySection,
    "FIGURE": FigureSection,
}
