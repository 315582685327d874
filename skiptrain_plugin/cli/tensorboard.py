"""``skiptrain run --tensorboard``: the rounds of a run as TensorBoard events, beside its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skiptrain_plugin.engine.callbacks import summary
from skiptrain_plugin.engine.simulation import Round, Simulation
from skiptrain_plugin.errors import InputError


class TensorBoard:
    """Writes energy after every round and the metrics of every evaluation to ``FOLDER/tensorboard``."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "--tensorboard needs the package tensorboard; pip install 'skiptrain-plugin[tensorboard]'"
            ) from None
        self._make: Any = SummaryWriter
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def after_round(self, simulation: Simulation, round: Round) -> None:
        """See ``Callback``."""
        if self._writer is None:
            self._writer = self._make(str(self._folder))
        values = {"training_wh": round.training_wh, "communication_wh": round.communication_wh}
        if round.evaluation is not None:
            values |= summary(round.evaluation)
        for name, value in values.items():
            self._writer.add_scalar(name, value, round.number)
        self._writer.flush()
