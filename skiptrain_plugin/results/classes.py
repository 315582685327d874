"""Figure 7: which classes the first nodes hold, from the partition of the data itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skiptrain_plugin.data import ImageData
from skiptrain_plugin.data.for_experiment import partition_of
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.results.charts import BubblePanel, Chart
from skiptrain_plugin.results.style import clean

NODES_SHOWN = 10
_PARTITIONS = {"writer": "samples by writer", "iid": "samples shuffled"}


def class_counts(experiment: Experiment, data: ImageData, nodes: int = NODES_SHOWN) -> tuple[tuple[int, ...], ...]:
    """Training samples of each class on each of the first ``nodes`` nodes."""
    return tuple(
        tuple(int(count) for count in np.bincount(data.train_y[part], minlength=data.classes))
        for part in partition_of(experiment, data)[:nodes]
    )


def figure7(sources: Sequence[tuple[Experiment, ImageData]], name: str, nodes: int = NODES_SHOWN) -> Chart:
    """Class bubbles of one or more datasets."""
    panels = []
    for experiment, data in sources:
        counts = class_counts(experiment, data, nodes)
        title = clean(data.title)
        partition = _PARTITIONS.get(experiment.partition, f"partition {experiment.partition}")
        if experiment.partition == "kshard":
            partition = f"{experiment.dataset.shards} shards a node"
        panels.append(BubblePanel(f"{title}: {experiment.nodes} nodes, {partition}", counts))
    caption = f"Training samples of each class on the first {nodes} nodes; the area of a dot is the number of samples."
    subtitle = " and ".join(dict.fromkeys(clean(data.title) for _, data in sources))
    return Chart(name, "Figure 7: classes of the nodes", subtitle, caption, panels, len(panels))
