"""Reading one JSON file of LEAF, and saying exactly what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.errors import InputError

SIDE = 28
PIXELS = SIDE * SIDE
CLASSES = 62


@dataclass(frozen=True)
class Writer:
    """One user of a LEAF file."""

    name: str
    x: NDArray[np.float32]
    """Images, N x 28 x 28 x 1."""
    y: NDArray[np.uint8]
    """Labels, N."""


def read_leaf(path: Path, in_file_order: bool = False) -> list[Writer]:
    """The users of one file, in the order of its ``users`` list, or of its ``user_data`` when
    ``in_file_order``.

    (The framework reads training files by the one and test files by the other.)
    """
    content = _parse(path)
    users, user_data = content["users"], content["user_data"]
    if not isinstance(users, list) or not all(isinstance(user, str) and user.strip() for user in users):
        raise InputError(f"{path}: 'users' must be a list of names")
    if any("\n" in user for user in users):
        raise InputError(f"{path}: a name in 'users' contains a line break")
    if len(set(users)) != len(users):
        twice = next(user for user in users if users.count(user) > 1)
        raise InputError(f"{path}: user '{twice}' is in 'users' twice")
    if not isinstance(user_data, dict):
        raise InputError(f"{path}: 'user_data' must be an object with one entry a user")
    if set(user_data) != set(users):
        odd = sorted(set(user_data) ^ set(users))[0]
        where = "'users' but not in 'user_data'" if odd in users else "'user_data' but not in 'users'"
        raise InputError(f"{path}: user '{odd}' is in {where}")
    counts = content["num_samples"]
    if isinstance(counts, int) and len(users) == 1:
        counts = [counts]  # files of one user, as the framework splits them
    if not isinstance(counts, list) or len(counts) != len(users):
        raise InputError(f"{path}: 'num_samples' must hold {len(users)} numbers, one for each of 'users'")
    announced = dict(zip(users, counts, strict=True))
    return [_writer(path, user, user_data[user], announced[user]) for user in (user_data if in_file_order else users)]


def _parse(path: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"{path}: the key '{twice}' is there twice")
        return dict(pairs)

    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: not JSON: {error or type(error).__name__}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a LEAF file: an object with users, num_samples and user_data is expected")
    for key in ("users", "num_samples", "user_data"):
        if key not in content:
            raise InputError(f"{path}: the key '{key}' is missing")
    return content


def _writer(path: Path, user: str, content: Any, announced: Any) -> Writer:
    where = f"{path}: user '{user}'"
    if not isinstance(content, dict):
        raise InputError(f"{where}: an object with x and y is expected")
    for key in ("x", "y"):
        if key not in content:
            raise InputError(f"{where}: the key '{key}' is missing")
        if not isinstance(content[key], list):
            raise InputError(f"{where}: '{key}' must be a list")
    if len(content["x"]) != len(content["y"]):
        raise InputError(f"{where}: {len(content['x'])} images in x but {len(content['y'])} labels in y")
    if announced != len(content["y"]):
        raise InputError(f"{where}: num_samples says {announced}, but there are {len(content['y'])} samples")
    labels = np.empty(len(content["y"]), dtype=np.uint8)
    for i, label in enumerate(content["y"]):
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < CLASSES:
            raise InputError(f"{where}: y[{i}] is {_short(label)}, not a label between 0 and {CLASSES - 1}")
        labels[i] = label
    return Writer(user, _images(where, content["x"]).reshape(-1, SIDE, SIDE, 1), labels)


def _images(where: str, images: list[Any]) -> NDArray[np.float32]:
    """All images of a user at once where they are sound; one after the other to name the place where not."""
    if not images:
        return np.empty((0, PIXELS), dtype=np.float32)
    pixels = _numbers(images)
    if pixels is not None and pixels.shape == (len(images), PIXELS) and np.isfinite(pixels).all():
        return pixels
    for i, image in enumerate(images):
        if not isinstance(image, list) or len(image) != PIXELS:
            found = f"{len(image)} values" if isinstance(image, list) else _short(image)
            raise InputError(f"{where}: x[{i}] is {found}, not a list of {PIXELS} numbers")
        for j, value in enumerate(image):
            single = _numbers([value])
            if single is None or single.shape != (1,) or not np.isfinite(single).all():
                raise InputError(f"{where}: x[{i}][{j}] is {_short(value)}, not a finite number")
    raise InputError(f"{where}: x is not a list of images of {PIXELS} numbers each")


def _numbers(values: list[Any]) -> NDArray[np.float32] | None:
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        return None
    if array.dtype.kind not in "fiu":
        return None
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
