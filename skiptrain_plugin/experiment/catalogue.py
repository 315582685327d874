"""What an experiment may name: datasets, the models that come with the project, and the two scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skiptrain_plugin.energy.devices import Workload
from skiptrain_plugin.errors import unknown


@dataclass(frozen=True)
class Architecture:
    """Facts about a model that need no torch; checked against the real one by a test."""

    name: str
    parameters: int
    """|x|."""
    forward_flop: int
    """Floating-point operations of the forward pass of one sample (a multiply-add counts as two)."""


LENET = Architecture("LeNet", 89_834, 24_596_480)
CNN = Architecture("CNN", 1_690_046, 24_599_552)


@dataclass(frozen=True)
class DatasetFacts:
    """A dataset by its name on the command line."""

    name: str
    dataset_class: str
    """The class in the INI, of this project or of DecentralizePy."""
    architecture: Architecture
    """The model that comes with it."""
    partition: str
    """The partition when the INI names none."""
    workload: Workload
    """What a training round computes in the paper, for which its energy traces were made."""
    battery_share: float
    """The part of the battery that may be spent on training."""
    rounds: int
    """T in the paper."""
    train_samples: int
    """Training samples; of a dataset dealt by writer, those of 256 writers."""
    train_bytes: int
    """Size of the images and labels in memory."""
    template: str


_ON_CIFAR = Workload(LENET.parameters, 32, 20)
_ON_FEMNIST = Workload(CNN.parameters, 16, 7)
DATASETS: dict[str, DatasetFacts] = {
    facts.name: facts
    for facts in (
        DatasetFacts("cifar", "CIFAR10", LENET, "simple", _ON_CIFAR, 0.1, 1000, 50_000, 60_000 * 3073, "cifar.ini"),
        DatasetFacts("femnist", "Femnist", CNN, "writer", _ON_FEMNIST, 0.5, 3000, 98_154, 150_000 * 785, "femnist.ini"),
        DatasetFacts("glyphs", "Glyphs", CNN, "writer", _ON_FEMNIST, 0.5, 3000, 25_945, 40_000 * 785, "glyphs.ini"),
        DatasetFacts(
            "synthetic", "Synthetic", LENET, "kshard", _ON_CIFAR, 0.1, 1000, 10_000, 12_000 * 3073, "synthetic.ini"
        ),
    )
}


def dataset_facts(name: str, where: str = "") -> DatasetFacts:
    """The dataset called ``name`` on the command line."""
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS, where)
    return DATASETS[name]


def dataset_of_class(dataset_class: str, where: str) -> DatasetFacts:
    """The dataset whose class the INI names."""
    for facts in DATASETS.values():
        if facts.dataset_class == dataset_class:
            return facts
    raise unknown("dataset_class", dataset_class, [f.dataset_class for f in DATASETS.values()], where)


PAPER_NODES = 256
PARTITIONS = ("kshard", "iid", "simple", "dirichlet", "writer")
"""How training data can be dealt to the nodes."""

SCALES: dict[str, Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "paper": {
        name: {"RUN": {"nodes": str(PAPER_NODES), "rounds": str(facts.rounds)}} for name, facts in DATASETS.items()
    },
    "laptop": {
        name: {
            "RUN": {
                "nodes": "32",
                "rounds": "24",
                "eval_samples": "1000",
                "checkpoint_every": "8",
            },
            "NODE": {"budget_horizon": str(facts.rounds)},
        }
        for name, facts in DATASETS.items()
    },
}
"""Scale → dataset → section → key → value, laid over the template."""


def scale_values(scale: str, dataset: str) -> Mapping[str, Mapping[str, str]]:
    """What a scale sets for a dataset."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return SCALES[scale][dataset]


_SHARING = frozenset({"compress", "compression_package", "compression_class", "float_precision"})
_TCP = frozenset({"offset", "recv_timeout"})

OPTIONS: dict[str, frozenset[str]] = {
    "decentralizepy.communication.TCP.TCP": _TCP,
    "skiptrain_plugin.communication.SecureTCP": _TCP | {"keys", "max_message_mb"},
    "decentralizepy.sharing.Sharing.Sharing": _SHARING,
    "decentralizepy.sharing.PlainAverageSharing.PlainAverageSharing": _SHARING,
    "skiptrain_plugin.sharing.SkipTrainSharing": _SHARING | {"peer_deadline"},
}
"""The further keys that the known classes of COMMUNICATION and SHARING take."""
