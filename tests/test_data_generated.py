"""Glyphs, synthetic images, the list of datasets, tensors, and importing torchvision."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from skiptrain_plugin import data
from skiptrain_plugin.data import glyphs, synthetic
from skiptrain_plugin.data.tensors import gather, gather_labels, to_input
from skiptrain_plugin.errors import InputError
from tests.data_problems import cache, leftovers, python, tiny_data

__all__ = ["cache"]


def test_glyphs_look_like_femnist(cache: Path) -> None:
    drawn = data.load("glyphs", nodes=20, seed=1)
    assert drawn.generated
    assert "not FEMNIST" in drawn.title
    assert drawn.train_x.dtype == np.uint8
    assert drawn.image_shape == (28, 28, 1)
    assert drawn.classes == 62
    assert len(drawn.writers) == 20
    assert drawn.train_writer is not None
    counts = np.bincount(drawn.train_writer)
    assert counts.min() >= 60
    assert counts.max() <= 140
    assert len(set(counts.tolist())) > 5
    assert len(drawn.test_x) == len(drawn.test_y) >= 8 * 20
    assert drawn.train_y.max() == 61
    assert np.median(drawn.train_x) > 240  # white paper
    assert (drawn.train_x.min(axis=(1, 2, 3)) < 180).mean() > 0.95  # dark ink on nearly every one
    assert isinstance(drawn.train_x, np.memmap)


def test_glyphs_depend_on_seed_and_writer_only(cache: Path) -> None:
    first, again = glyphs.draw_writer(3, 7), glyphs.draw_writer(3, 7)
    other, seeded = glyphs.draw_writer(3, 8), glyphs.draw_writer(4, 7)
    assert np.array_equal(first[0][0], again[0][0])
    assert np.array_equal(first[1][1], again[1][1])
    assert not np.array_equal(first[0][0][:50], other[0][0][:50])
    assert not np.array_equal(first[0][0][:50], seeded[0][0][:50])
    small, large = glyphs.load(2, 9), glyphs.load(3, 9)
    assert np.array_equal(small.train_x, large.train_x[: len(small.train_x)])
    assert small.digest != large.digest


def test_a_linear_model_finds_glyphs_hard_but_not_hopeless(cache: Path) -> None:
    drawn = glyphs.load(16, 0)
    x = to_input(gather(drawn.train_x), drawn, channels_last=False).flatten(1).numpy().astype(np.float64)
    unseen = to_input(gather(drawn.test_x), drawn, channels_last=False).flatten(1).numpy().astype(np.float64)
    targets = np.eye(62)[drawn.train_y]
    weights = np.linalg.solve(x.T @ x + 30 * np.eye(784), x.T @ targets)
    accuracy = float(((unseen @ weights).argmax(1) == drawn.test_y).mean())
    assert 0.1 < accuracy < 0.8


def test_synthetic_by_seed(cache: Path) -> None:
    start = time.perf_counter()
    one = data.load("synthetic", seed=1)
    assert time.perf_counter() - start < 10
    assert one.generated
    assert "not CIFAR-10" in one.title
    assert one.train_x.shape == (10_000, 32, 32, 3)
    assert one.test_x.shape == (2_000, 32, 32, 3)
    assert one.train_x.dtype == one.train_y.dtype == np.uint8
    assert np.bincount(one.train_y).tolist() == [1000] * 10
    small = synthetic.load(1, train=30, test=10)
    same, other = synthetic.load(1, train=30, test=20), synthetic.load(2, train=30, test=10)
    assert np.array_equal(small.train_x, same.train_x)
    assert not np.array_equal(small.train_x, other.train_x)
    assert not np.array_equal(small.train_x[:10], small.test_x)
    assert leftovers(cache) == [
        "synthetic-v1-10000-2000-1",
        "synthetic-v1-30-10-1",
        "synthetic-v1-30-10-2",
        "synthetic-v1-30-20-1",
    ]


def test_impossible_sizes_are_refused(cache: Path) -> None:
    with pytest.raises(InputError, match="1 to 9999 writers, not 0"):
        glyphs.load(0, 1)
    with pytest.raises(InputError, match="not 0 and 5"):
        synthetic.load(1, train=0, test=5)
    with pytest.raises(InputError, match="unknown dataset 'cifr'.*did you mean 'cifar'"):
        data.load("cifr", seed=1)


def test_listing_get_and_check(cache: Path) -> None:
    assert [(line.name, line.present) for line in data.listing()] == [(name, False) for name in data.NAMES]
    assert not data.check("glyphs").sound
    got = data.get("glyphs", progress=False)
    assert got.present
    assert got.where == (cache / "glyphs-v1-16-0",)
    assert got.size > 500_000
    sound = data.check("glyphs")
    assert sound.sound
    assert sound.size == got.size
    path = cache / "glyphs-v1-16-0" / "train_x.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(bytes(content))
    broken = data.check("glyphs")
    assert not broken.sound
    assert "train_x.npy has sha256" in broken.problems[0]
    assert "delete this folder" in broken.problems[0]


def test_check_knows_that_other_arrays_are_not_cifar(cache: Path) -> None:
    folder = synthetic.load(1, train=30, test=10)
    assert folder.generated
    (cache / "synthetic-v1-30-10-1").rename(cache / "cifar10")
    found = data.check("cifar")
    assert not found.sound
    assert "train_x is not CIFAR-10's" in found.problems[0]


def test_input_is_bit_identical_to_torchvisions() -> None:
    from skiptrain_plugin.torchvision_fix import import_torchvision

    import_torchvision()
    from torchvision import transforms

    theirs = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
    pixels = np.arange(256 * 12, dtype=np.uint32).astype(np.uint8).reshape(8, 16, 8, 3)
    cifar = dataclasses.replace(tiny_data([0] * 8), pixel_offset=0.5, pixel_scale=0.5)
    ours = to_input(torch.from_numpy(pixels), cifar)
    assert torch.equal(ours, torch.stack([theirs(image) for image in pixels]))
    assert ours.dtype == torch.float32
    assert ours.is_contiguous(memory_format=torch.channels_last)
    plain = to_input(torch.from_numpy(pixels), cifar, channels_last=False)
    assert plain.is_contiguous()
    assert torch.equal(plain, ours)


def test_floats_pass_as_they_are_and_input_is_not_changed() -> None:
    images = torch.rand(3, 4, 4, 1)
    before = images.clone()
    assert torch.equal(to_input(images, tiny_data([0])), images.permute(0, 3, 1, 2))
    shifted = dataclasses.replace(tiny_data([0]), pixel_offset=0.25, pixel_scale=2.0)
    assert torch.equal(to_input(images, shifted), (images.permute(0, 3, 1, 2) - 0.25) / 2.0)
    assert torch.equal(images, before)


def test_gather_copies_what_is_asked_for(cache: Path) -> None:
    drawn = synthetic.load(1, train=30, test=10)
    some = np.array([4, 2])
    assert torch.equal(gather(drawn.train_x, some), torch.from_numpy(np.array(drawn.train_x))[[4, 2]])
    assert gather_labels(drawn.train_y, some).tolist() == drawn.train_y[some].tolist()
    assert gather_labels(drawn.train_y).dtype == torch.int64
    whole = gather(drawn.test_x)
    whole += 1  # a copy: the cache behind it cannot be written


def test_torchvision_imports_whatever_torch_it_was_built_for() -> None:
    code = """
        import sys
        from skiptrain_plugin.torchvision_fix import import_torchvision
        torchvision = import_torchvision()
        assert import_torchvision() is torchvision is sys.modules["torchvision"]
        from torchvision import datasets, transforms
        import torch
        assert torch.ops.torchvision.nms and torch.ops.torchvision.qnms
        print(datasets.CIFAR10.base_folder)
    """
    result = python(code)
    assert result.stdout == "cifar-10-batches-py\n", result.stderr


def test_torchvision_fix_declares_nothing_where_torchvision_is_sound(tmp_path: Path) -> None:
    """A torchvision that imports as it is, and one that lacks its operators as the real one does."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import part\n")
    (package / "part.py").write_text("")
    code = """
        import sys
        sys.path.insert(0, FOLDER)
        from skiptrain_plugin import torchvision_fix as fix
        print(fix.import_torchvision().__file__.startswith(FOLDER), len(fix._declared))
    """.replace("FOLDER", repr(str(tmp_path)))
    assert python(code).stdout == "True 0\n"
    (package / "part.py").write_text(
        "import torch\n"
        "if not hasattr(torch.ops.torchvision, 'nms'):\n"
        "    raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    assert python(code).stdout == "True 1\n"
    (package / "part.py").write_text("raise RuntimeError('something else')\n")
    failed = python(code)
    assert failed.returncode == 1
    assert "something else" in failed.stderr
