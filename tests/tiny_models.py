"""Small models that tests name in the INI; they pool images of any size to 8×8 first (8×8 ones stay as they are)."""

import torch
from torch import nn
from torch.nn import functional as F


def small(x: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool2d(x, 8)


class Linear(nn.Module):
    """One linear layer on 8×8 colour images."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(small(x).flatten(1))


class Convolution(nn.Module):
    """A convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(F.max_pool2d(self.conv(small(x)), 2)).flatten(1))


class Normalized(Convolution):
    """With BatchNorm: its buffers are shared and averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(F.max_pool2d(self.norm(self.conv(small(x))), 2)).flatten(1))


class Dropping(Linear):
    """With dropout: it draws from torch's generator while training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.dropout(small(x).flatten(1), 0.5, self.training))


class TwoClasses(Linear):
    """Gives too few numbers for any dataset here."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 2)


class Frozen(Convolution):
    """Its first layer does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.conv.requires_grad_(False)
