"""SkipTrain as a node of DecentralizePy: name this class in the driver, and the algorithm in [NODE]."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from skiptrain_plugin import framework

framework.require()

from decentralizepy import utils  # noqa: E402
from decentralizepy.node.DPSGDNode import DPSGDNode  # noqa: E402

from skiptrain_plugin.deployment.rounds import RoundLoop  # noqa: E402
from skiptrain_plugin.deployment.settings import node_settings, typed  # noqa: E402
from skiptrain_plugin.models import model_maker, model_size  # noqa: E402
from skiptrain_plugin.named import named_class  # noqa: E402
from skiptrain_plugin.wire.addresses import read_addresses, warn_if_exposed  # noqa: E402

DEFAULT_SEED = 97
"""The framework's seed of the initial weights when the INI gives none."""


class SkipTrainNode(RoundLoop, DPSGDNode):  # type: ignore[misc]
    """A DPSGDNode that trains only when its policy says so. Arguments and INI are the framework's.

    As with every node of the framework, the constructor runs the experiment. ``args`` may hold a ``Link``, which
    the launcher of this project gives to its nodes.
    """

    def instantiate(
        self,
        rank: int,
        machine_id: int,
        mapping: Any,
        graph: Any,
        config: Any,
        iterations: int = 1,
        log_dir: str = ".",
        weights_store_dir: str = ".",
        log_level: int = logging.INFO,
        test_after: int = 5,
        train_evaluate_after: int = 1,
        reset_optimizer: int = 1,
        *args: Any,
    ) -> None:
        """Reads [NODE] and [RUN] first, so that a mistake there ends the node before it loads data."""
        sections = {name: dict(section) for name, section in config.items()}
        degrees = [len(graph.neighbors(uid)) for uid in range(graph.n_procs)]
        uid = mapping.get_uid(rank, machine_id)
        size = model_size(sections["DATASET"])
        settings = node_settings(sections, uid, graph.n_procs, float(np.mean(degrees)), iterations, size)
        self.prepare(settings, args[0] if args else None)
        super().instantiate(
            rank,
            machine_id,
            mapping,
            graph,
            typed(sections),
            iterations,
            log_dir,
            weights_store_dir,
            log_level,
            test_after,
            train_evaluate_after,
            reset_optimizer,
        )

    def init_dataset_model(self, dataset_configs: dict[str, Any]) -> None:
        """As the framework, and ``model_package`` may say where the model is when not beside the dataset."""
        package = dataset_configs["dataset_package"]
        self.dataset_class = named_class(package, dataset_configs["dataset_class"], "[DATASET] dataset_class")
        seed = dataset_configs.get("random_seed", DEFAULT_SEED)
        torch.manual_seed(seed)
        np.random.seed(seed)
        named = ("dataset_package", "dataset_class", "model_package", "model_class")
        self.dataset_params = utils.remove_keys(dataset_configs, named)
        self.dataset = self.dataset_class(self.rank, self.machine_id, self.mapping, **self.dataset_params)
        if self.settings.run.eval_samples and hasattr(self.dataset, "limit_evaluation"):
            self.dataset.limit_evaluation(self.settings.run.eval_samples, self.settings.seed)
        where = dataset_configs.get("model_package") or package
        self.model_class = model_maker(where, dataset_configs["model_class"], "[DATASET] model_class")
        self.model = self.model_class()
        logging.info("Dataset and model are ready.")

    def init_comm(self, comm_configs: dict[str, Any]) -> None:
        """As the framework, with a warning where pickles would be taken from a network."""
        if comm_configs["comm_package"].startswith("decentralizepy.") and comm_configs.get("addresses_filepath"):
            warn_if_exposed(read_addresses(comm_configs["addresses_filepath"]), self.machine_id)
        super().init_comm(comm_configs)

    def get_neighbors(self, node: Any = None) -> set[int]:
        """See ``RoundLoop``."""
        return RoundLoop.get_neighbors(self, node)
