"""The data: four datasets, verified and memory-mapped, and how they are dealt to the nodes."""

from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.data.catalogue import NAMES, Check, Listing, check, get, listing, load
from skiptrain_plugin.data.partitions import deal, validation
from skiptrain_plugin.experiment.catalogue import PARTITIONS

__all__ = [
    "NAMES",
    "PARTITIONS",
    "Check",
    "ImageData",
    "Listing",
    "check",
    "deal",
    "get",
    "listing",
    "load",
    "validation",
]
