"""This project's data as datasets of DecentralizePy, and the paper's models as its Models.

Same arguments, same partition and same validation split as the framework's own classes; the images are verified and
memory-mapped, a node copies only its own, and evaluation works in whole batches.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from skiptrain_plugin import framework, models
from skiptrain_plugin.data import ImageData, load
from skiptrain_plugin.data.tensors import gather, gather_labels
from skiptrain_plugin.deployment.images import (
    EvaluationBatches,
    TrainBatches,
    parse_sizes,
    parts_of,
    score,
    some_of,
)
from skiptrain_plugin.experiment.catalogue import dataset_facts

framework.require()

from decentralizepy.datasets.Dataset import Dataset  # noqa: E402
from decentralizepy.models.Model import Model  # noqa: E402


class ImageDataset(Dataset):  # type: ignore[misc]
    """The framework's Dataset on a dataset of this project; subclasses name it."""

    name: ClassVar[str]
    """The dataset's name on the command line."""

    def __init__(
        self,
        rank: int,
        machine_id: int,
        mapping: Any,
        random_seed: int = 1234,
        only_local: bool = False,
        train_dir: str = "",
        test_dir: str = "",
        sizes: Any = "",
        test_batch_size: Any = 1024,
        partition_niid: Any = None,
        alpha: float = 100,
        shards: int = 1,
        validation_source: str = "",
        validation_size: Any = "",
    ) -> None:
        """Finds this node's part and copies it; ``train_dir`` and ``test_dir`` may be empty: the cache has the data."""
        super().__init__(
            rank,
            machine_id,
            mapping,
            random_seed,
            only_local,
            train_dir,
            test_dir,
            "",
            test_batch_size,
            validation_source,
            validation_size,
        )
        self.data = self.load_images()
        self.__training__ = self.__testing__ = True
        self.num_classes = self.data.classes
        self.sizes = parse_sizes(sizes, self.num_partitions)
        self.partition_niid = dataset_facts(self.name).partition if partition_niid is None else partition_niid
        self.parts = parts_of(
            self.data,
            self.dataset_id,
            self.num_partitions,
            partition=self.partition_niid,
            seed=random_seed,
            shards=shards,
            alpha=alpha,
            sizes=self.sizes,
            validation_source=self.validation_source,
            validation_size=self.validation_size,
        )
        self._train_x = gather(self.data.train_x, self.parts.train)
        self._train_y = gather_labels(self.data.train_y, self.parts.train)
        self._evaluated, self._evaluation_seed = 0, 0

    def load_images(self) -> ImageData:
        """The images, from the cache or from ``train_dir`` and ``test_dir``."""
        return load(
            self.name,
            nodes=self.num_partitions,
            seed=self.random_seed,
            train_dir=self.train_dir or "",
            test_dir=self.test_dir or "",
            progress=False,
        )

    def limit_evaluation(self, samples: int, seed: int) -> None:
        """Evaluates on only this many samples from now on, the ones that the embedded engine takes."""
        self._evaluated, self._evaluation_seed = samples, seed

    def get_trainset(self, batch_size: int = 1, shuffle: bool = False) -> TrainBatches:
        """This node's training samples in minibatches."""
        return TrainBatches(self._train_x, self._train_y, self.data, batch_size, shuffle)

    def get_testset(self) -> EvaluationBatches:
        """The test samples in batches."""
        chosen = some_of(self.parts.test, self._evaluated, self._evaluation_seed)
        return EvaluationBatches(self.data.test_x, self.data.test_y, chosen, self.data, self.test_batch_size)

    def get_validationset(self) -> EvaluationBatches:
        """The validation samples in batches."""
        if self.parts.validation is None:
            raise RuntimeError("there is no validation set: give validation_source and validation_size in [DATASET]")
        x, y = self.data.test_x, self.data.test_y
        if self.parts.validation_from_train:
            x, y = self.data.train_x, self.data.train_y
        chosen = some_of(self.parts.validation, self._evaluated, self._evaluation_seed)
        return EvaluationBatches(x, y, chosen, self.data, self.test_batch_size)

    def test(self, model: nn.Module, loss: Any) -> tuple[float, float]:
        """Accuracy in percent and mean loss of ``model`` on the test samples."""
        return score(model, loss, self.get_testset())

    def validate(self, model: nn.Module, loss: Any) -> tuple[float, float]:
        """Accuracy in percent and mean loss of ``model`` on the validation samples."""
        return score(model, loss, self.get_validationset())


class CIFAR10(ImageDataset):
    """CIFAR-10."""

    name = "cifar"


class Femnist(ImageDataset):
    """FEMNIST: a writer a node."""

    name = "femnist"


class Glyphs(ImageDataset):
    """Generated characters in FEMNIST's form."""

    name = "glyphs"


class Synthetic(ImageDataset):
    """Generated images in CIFAR-10's form."""

    name = "synthetic"


class LeNet(models.LeNet, Model):  # type: ignore[misc]
    """The paper's model for CIFAR-10, with the names and initial weights of the framework's LeNet."""


class CNN(models.CNN, Model):  # type: ignore[misc]
    """The paper's model for FEMNIST, with the names and initial weights of the framework's CNN."""
