"""What is looked at before a node starts: that every class that the INI names exists, and that every port is free."""

from __future__ import annotations

import errno
import inspect
import time
from collections.abc import Mapping
from typing import Any

import zmq

from skiptrain_plugin.deployment.plan import Deployment
from skiptrain_plugin.deployment.ports import free_offset
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.models import model_maker
from skiptrain_plugin.named import named_class
from skiptrain_plugin.wire.addresses import endpoint, read_addresses

CLASSES = (
    ("DATASET", "dataset"),
    ("OPTIMIZER_PARAMS", "optimizer"),
    ("TRAIN_PARAMS", "training"),
    ("TRAIN_PARAMS", "loss"),
    ("COMMUNICATION", "comm"),
    ("SHARING", "sharing"),
)
"""Section, and what its keys ``…_package`` and ``…_class`` begin with."""
_PATIENCE = 3.0
"""Seconds that the nodes of a launcher that was killed just now have to leave their ports."""


def check_classes(deployment: Deployment) -> None:
    """Imports every class that the nodes will need; an ``InputError`` names the first that is not there."""
    for section, what in CLASSES:
        values = deployment.config.get(section, {})
        if what == "loss" and "loss_class" not in values and "loss" in values:
            continue  # the framework's other way: a function, which it finds itself
        named_class(*_named(deployment, section, what, f"{what}_package"))
    data = deployment.config["DATASET"]
    package = "model_package" if data.get("model_package") else "dataset_package"
    model_maker(*_named(deployment, "DATASET", "model", package))
    sharing = deployment.config["SHARING"]
    if sharing.get("compress") and sharing.get("compression_package"):
        named_class(*_named(deployment, "SHARING", "compression", "compression_package"))


def _named(deployment: Deployment, section: str, what: str, package: str) -> tuple[str, str, str]:
    """Package, class and the place that names it."""
    values: Mapping[str, Any] = deployment.config.get(section, {})
    for key in (package, f"{what}_class"):
        if not values.get(key):
            raise InputError(f"{deployment.origin}, [{section}] {key}: this key is missing")
    return str(values[package]), str(values[f"{what}_class"]), f"{deployment.origin}, [{section}] {what}_class"


def check_ports(deployment: Deployment) -> None:
    """Binds every port of this machine's nodes once, as the nodes will; an ``InputError`` names one that is taken.

    Where a communication class has no ``offset`` nothing is known of its ports, and nothing is looked at.
    """
    communication = deployment.config["COMMUNICATION"]
    kind = named_class(communication["comm_package"], communication["comm_class"], "[COMMUNICATION] comm_class")
    accepted = inspect.signature(kind).parameters
    if "offset" not in accepted:
        return
    addresses = read_addresses(communication["addresses_filepath"])
    offset = communication.get("offset", accepted["offset"].default)
    if not isinstance(offset, int):
        raise InputError(f"{deployment.origin}, [COMMUNICATION] offset: must be a whole number, not '{offset}'")
    end = time.monotonic() + _PATIENCE
    with zmq.Context() as context:
        for rank, uid in deployment.uids.items():
            place = endpoint(addresses, rank, deployment.machine_id, offset)
            while (error := _bind(context, place)) is not None:
                if error.errno == errno.EADDRINUSE and time.monotonic() < end:
                    time.sleep(0.1)
                    continue
                raise InputError(_sentence(deployment, uid, place, error)) from None


def _bind(context: zmq.Context[zmq.Socket[bytes]], place: str) -> zmq.ZMQError | None:
    """What is in the way of listening at ``place``."""
    with context.socket(zmq.ROUTER) as probe:
        try:
            probe.bind(place)
        except zmq.ZMQError as error:
            return error
    return None


def _sentence(deployment: Deployment, uid: int, place: str, error: zmq.ZMQError) -> str:
    sentence = f"{deployment.origin}, [COMMUNICATION]: node {uid} cannot listen at {place}: {error.strerror}"
    if error.errno != errno.EADDRINUSE:
        return f"{sentence}; is this the machine {deployment.machine_id} of the address file?"
    return f"{sentence}; offset = {free_offset(deployment.procs)} is free"
