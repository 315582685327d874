"""Phones and the derivation of a training-energy trace from their benchmarks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from skiptrain_plugin.errors import InputError

MOBILENET_V2_PARAMETERS = 3_504_872
TRAINING_TO_INFERENCE = 3
"""FedScale's rule: a training step costs three inferences."""
MS_PER_HOUR = 3.6e6


@dataclass(frozen=True)
class Device:
    """A phone as the AI and Burnout benchmarks describe it."""

    name: str
    mobilenet_v2_ms: float
    """Inference time of one sample with MobileNet-v2, ms."""
    power_w: float
    """Power drawn while computing, W."""
    battery_wh: float
    """Battery capacity, Wh."""


@dataclass(frozen=True)
class Workload:
    """What one training round computes on a device."""

    parameters: int
    """|x|, the number of model parameters."""
    batch_size: int
    """|ξ|, samples."""
    local_steps: int
    """E, SGD steps in a training round."""

    def __post_init__(self) -> None:
        for name in ("parameters", "batch_size", "local_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def work(self) -> int:
        """|x| · |ξ| · E, to which the energy of a training round is proportional."""
        return self.parameters * self.batch_size * self.local_steps

    def __str__(self) -> str:
        return f"|x| {self.parameters}, batch {self.batch_size}, {self.local_steps} local steps"


@dataclass(frozen=True)
class TraceRow:
    """One device's line of an energy trace."""

    name: str
    wh_per_round: float
    """Energy of one training round, Wh."""
    budget: int
    """τ, the training rounds that the device's share of its battery pays for."""
    allowance_wh: float | None = field(default=None, repr=False, compare=False)
    """The share of the battery itself, Wh, where it is known; otherwise it is taken to be τ training rounds."""

    def scaled(self, factor: float) -> TraceRow:
        """The row for ``factor`` times the work: Wh grows with it, and τ is what the same share of the battery pays."""
        if factor == 1:
            return self
        allowance = self.budget * self.wh_per_round if self.allowance_wh is None else self.allowance_wh
        wh = self.wh_per_round * factor
        return replace(self, wh_per_round=wh, budget=math.floor(allowance / wh))


@dataclass(frozen=True)
class Trace:
    """What a training round costs each device; node uid takes row uid mod (number of rows)."""

    rows: tuple[TraceRow, ...]
    workload: Workload | None
    """The workload it was made for; None where the file does not say it."""
    from_authors: bool = False
    """Whether it has the layout of the paper's authors, which is for the paper's workload and cannot say so."""


def training_ms(device: Device, workload: Workload) -> float:
    """Duration of a training round: MobileNet-v2 ms · |x|/3 504 872 · 3 · batch · local steps."""
    scaled = device.mobilenet_v2_ms * workload.parameters / MOBILENET_V2_PARAMETERS
    return scaled * TRAINING_TO_INFERENCE * workload.batch_size * workload.local_steps


def derive(device: Device, workload: Workload, battery_share: float) -> TraceRow:
    """The trace row of ``device``: Wh = W · ms / 3.6e6 and τ = floor(share · battery / Wh).

    ``battery_share`` is the part of the battery that may be spent on training, in (0, 1].
    """
    if not 0 < battery_share <= 1:
        raise InputError(f"the battery share must be above 0 % and at most 100 %, not {battery_share * 100:g} %")
    wh = device.power_w * training_ms(device, workload) / MS_PER_HOUR
    allowance = battery_share * device.battery_wh
    return TraceRow(device.name, wh, math.floor(allowance / wh), allowance)
