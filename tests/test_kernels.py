"""The native kernel against torch in float64, and what happens where it cannot be had."""

import copy
import stat
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skiptrain_plugin.kernels import library
from skiptrain_plugin.kernels.block import _shape_of, conv_block, native_kernels
from skiptrain_plugin.kernels.selection import uses_native, why_not
from skiptrain_plugin.models import CNN, LeNet
from tests.problems import refused, skiptrain, tiny_images
from tests.test_engine import simulate, tiny

needs_kernel = pytest.mark.skipif(
    isinstance(library.load_library(), library.Unavailable), reason=f"no native kernel: {library.load_library()}"
)
"""Where it cannot be built; one that is built and wrong must fail, not be skipped."""
MARGIN = 2e-5
"""Pooling windows whose two largest values are closer than this may choose either in float32."""

SHAPES = {
    "first layer of LeNet": (5, 32, 32, 3, 32, 2),
    "second layer of LeNet": (3, 16, 16, 32, 32, 2),
    "third layer of LeNet, more images than go together": (7, 8, 8, 32, 64, 2),
    "first layer of CNN": (3, 28, 28, 1, 32, 0),
    "second layer of CNN, tiles cut off": (3, 14, 14, 32, 64, 0),
    "one image, not square": (1, 6, 20, 32, 64, 1),
    "four channels, narrower than a tile": (2, 8, 2, 4, 32, 2),
    "two channels, as wide as can be": (1, 4, 64, 2, 64, 4),
    "wide and deep": (2, 12, 24, 64, 96, 3),
}


def problem(images, height, width, channels, out, groups, seed):
    torch.manual_seed(seed)
    convolution, norm = nn.Conv2d(channels, out, 5, padding="same"), nn.GroupNorm(groups, out) if groups else None
    if norm is not None:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    x = torch.randn(images, channels, height, width)
    return convolution, norm, x, torch.randn(images, out, height // 2, width // 2)


def clear(convolution, norm, x) -> bool:
    """Whether every pooling window has a clear winner, and ReLU a clear sign, in float64."""
    y = convolution(x)
    y = y if norm is None else norm(y)
    windows = F.unfold(y.flatten(0, 1)[:, None], 2, stride=2)
    best = windows.topk(2, dim=1).values
    return bool((best[:, 0] - best[:, 1]).min() > MARGIN) and bool(best[:, 0].abs().min() > MARGIN)


def passes(convolution, norm, x, gradient, native):
    """Output and gradients of the block."""
    x = x.clone().requires_grad_(x.shape[1] > 4)
    wanted = [*convolution.parameters(), *(norm.parameters() if norm else ()), *([x] if x.requires_grad else [])]
    with native_kernels(native):
        assert not native or _shape_of(x, convolution, norm) is not None
        out = conv_block(x, convolution, norm)
        return [out.detach(), *torch.autograd.grad(out, wanted, gradient)]


@needs_kernel
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_those_of_torch_in_float64(name):
    for seed in range(200):
        convolution, norm, x, gradient = problem(*SHAPES[name], seed)
        exact = [copy.deepcopy(part).double() if part is not None else None for part in (convolution, norm)]
        if clear(*exact, x.double()):
            break
    else:
        pytest.fail("no clear problem found")
    expected = passes(*exact, x.double(), gradient.double(), native=False)
    for ours, theirs in zip(passes(convolution, norm, x, gradient, native=True), expected, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) < 1e-4 * float(theirs.abs().max())


@needs_kernel
def test_memory_order_of_images_and_filters_does_not_matter():
    convolution, norm, x, gradient = problem(3, 16, 16, 32, 32, 2, 0)
    plain = passes(convolution, norm, x, gradient, native=True)
    last = torch.channels_last
    turned = passes(convolution.to(memory_format=last), norm, x.to(memory_format=last), gradient, native=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, turned, strict=True))


@needs_kernel
@pytest.mark.parametrize("model", [LeNet, CNN])
def test_evaluation_computes_what_training_does(model):
    torch.manual_seed(1)
    network, x = model(), torch.randn(6, *((3, 32, 32) if model is LeNet else (1, 28, 28)))
    with native_kernels(True):
        training = network(x)
        with torch.inference_mode():
            assert torch.equal(network(x), training)
    assert torch.allclose(network(x), training, atol=1e-4)


@needs_kernel
def test_each_image_is_computed_alone():
    convolution, norm, x, _ = problem(7, 8, 8, 32, 64, 2, 3)
    with native_kernels(True), torch.inference_mode():
        together = conv_block(x, convolution, norm)
        alone = torch.cat([conv_block(image, convolution, norm) for image in x.split(1)])
    assert torch.equal(together, alone)


@needs_kernel
def test_what_is_not_a_number_stays_so():
    convolution, norm, x, _ = problem(2, 8, 8, 32, 64, 2, 4)
    x[1, 5, 3, 3] = float("nan")
    with native_kernels(True):
        out = conv_block(x, convolution, norm)
    assert out[0].isfinite().all()
    assert out[1].isnan().all()


@needs_kernel
@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(3, 32, 3, padding=1),
        nn.Conv2d(3, 32, 5, padding=1),
        nn.Conv2d(3, 32, 5, padding=2, bias=False),
        nn.Conv2d(3, 32, 5, padding=2, padding_mode="circular"),
        nn.Conv2d(3, 33, 5, padding=2),
        nn.Conv2d(3, 32, 5, padding=2).double(),
    ],
    ids=["3x3", "not same", "no bias", "circular", "33 channels", "float64"],
)
def test_other_convolutions_go_to_torch(convolution):
    x = torch.randn(2, 3, 8, 8, dtype=convolution.weight.dtype)
    with native_kernels(True):
        assert _shape_of(x, convolution, None) is None
        out = conv_block(x, convolution)
    assert torch.equal(out, F.relu(F.max_pool2d(convolution(x), 2)))


@needs_kernel
def test_gradient_of_the_images_is_not_lost():
    convolution, norm, x, _ = problem(2, 8, 8, 3, 32, 2, 5)
    x.requires_grad_()
    with native_kernels(True):
        conv_block(x, convolution, norm).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@needs_kernel
def test_engine_gives_the_same_for_any_number_of_workers_and_stays_close_to_torch():
    lenet = ("DATASET.model_package=", "RUN.rounds=3", "TRAIN_PARAMS.rounds=2", "RUN.nodes=3")
    base, data = tiny(*lenet, model="LeNet", images=tiny_images(120, 30, side=32))

    def run(**changes):
        return simulate(replace(base, run=base.run.model_copy(update=changes)), data)

    one, _ = run(workers=1, kernels="native")
    three, _ = run(workers=3, kernels="native")
    plain, _ = run(workers=2, kernels="torch")
    assert torch.equal(one.models, three.models)
    assert not torch.equal(one.models, plain.models)
    assert torch.allclose(one.models, plain.models, atol=2e-3)


def small_run(folder, *arguments, **environment):
    sizes = ("RUN.nodes=3", "RUN.rounds=1", "TRAIN_PARAMS.rounds=1", "RUN.eval_samples=20")
    settings = [part for size in sizes for part in ("--set", size)]
    command = ["run", "--dataset", "synthetic", "--degree", "2", "--scale", "laptop", "--out", folder]
    return skiptrain(*command, *settings, *arguments, **environment)


def test_without_a_compiler_torch_computes_and_the_record_says_why(tmp_path):
    done = small_run(tmp_path / "run", CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "run" / "skiptrain" / "run.json").read_text()
    assert "torch (CC names 'no-such-compiler', which is not found)" in said
    assert "kernels: torch (CC names" in done.stderr
    refused(small_run(tmp_path / "two", "--set", "RUN.kernels=native", CC="no-such-compiler"), "auto, torch", "CC")
    refused(small_run(tmp_path / "three", "--set", "RUN.kernels=fast"), "kernels", "auto", "native", "torch")


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('out of paper')\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library.load_library.cache_clear()
    try:
        assert "out of paper" in str(library.load_library())
    finally:
        library.load_library.cache_clear()
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_choosing_torch_is_always_possible():
    assert uses_native("torch") is False
    assert uses_native("auto") is not bool(why_not())
