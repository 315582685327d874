"""What is not finite in torch is not finite with the native kernel: no divergence is hidden."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from skiptrain_plugin.errors import RunError
from skiptrain_plugin.kernels.block import _shape_of, conv_block, native_kernels
from tests.problems import tiny_images
from tests.test_engine import simulate, tiny
from tests.test_kernels import needs_kernel, passes, problem

pytestmark = needs_kernel

SHAPES = {
    "LeNet's first": (1, 32, 32, 3, 32, 2),
    "LeNet's third": (2, 8, 8, 32, 64, 2),
    "CNN's first": (1, 28, 28, 1, 32, 0),
    "CNN's second": (1, 14, 14, 32, 64, 0),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Blocks this small are faster so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


HOSTILE = (math.inf, -math.inf, math.nan, 3.4e38, -1e38, 1e35, -1e30, 1e25, 1e19, -1e18, 1e15, 1e10)
PARTS = ("images", "filters", "bias", "scale", "shift", "gradient")


def parts(block):
    """The tensors of a problem that can be hostile, by name."""
    convolution, norm, x, gradient = block
    held = {"images": x, "filters": convolution.weight, "bias": convolution.bias, "gradient": gradient}
    return {
        name: t.detach() for name, t in (held | ({"scale": norm.weight, "shift": norm.bias} if norm else {})).items()
    }


def assert_as_finite_as_torch(convolution, norm, x, gradient) -> bool:
    """Native result and gradients are finite exactly where torch's are; returns whether all of them are."""
    last = torch.channels_last
    convolution, x = convolution.to(memory_format=last), x.to(memory_format=last)
    ours = passes(convolution, norm, x, gradient, native=True)
    theirs = passes(convolution, norm, x, gradient, native=False)
    for mine, plain in zip(ours, theirs, strict=True):
        assert torch.equal(mine.isfinite(), plain.isfinite())
    return all(bool(plain.isfinite().all()) for plain in theirs)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", SHAPES)
def test_one_hostile_value_anywhere(name, part):
    finite = 0
    for seed, value in enumerate(HOSTILE):
        block = problem(*SHAPES[name], seed)
        if part not in parts(block):
            pytest.skip("a block without GroupNorm")
        target = parts(block)[part].flatten()
        place = int(torch.randint(len(target), ()))
        parts(block)[part].view(-1)[place] = value
        finite += assert_as_finite_as_torch(*block)
    assert 0 < finite < len(HOSTILE)


def test_everything_of_any_size():
    """Every tensor times a power of ten of its own: the results of most are finite in part or not at all."""
    finite = 0
    for seed, groups in itertools.product(range(60), (0, 2)):
        block = problem(2, 4, 8, 32, 32, groups, seed)
        for tensor in parts(block).values():
            tensor *= 10.0 ** float(torch.empty(()).uniform_(-4, 38))
        finite += assert_as_finite_as_torch(*block)
    assert 10 < finite < 110


@pytest.mark.parametrize("size", [1e17, 3e18, 1e19, 3e19, 1e20])
def test_variance_that_overflows_hides_nothing(size):
    """Images of ``size`` with GroupNorm: the sum of squares leaves float32 at 1e19, and 1/sqrt(inf) would be 0."""
    convolution, norm, x, gradient = problem(2, 8, 8, 32, 64, 2, 0)
    assert_as_finite_as_torch(convolution, norm, x * size, gradient)


def test_sums_that_overflow_only_in_torch_are_not_hidden():
    """A smooth hill under a second difference: 5e36 in all, which Winograd gives, but 1e39 in a single product."""
    convolution = nn.Conv2d(32, 32, 5, padding=2)
    convolution.weight.detach().zero_()
    convolution.weight.detach()[:, 0, 2, 1:4] = torch.tensor([50.0, -100.0, 50.0])
    hill = 1e37 * torch.sin(torch.arange(32) * math.pi / 31).square()
    x = torch.zeros(1, 32, 4, 32)
    x[0, 0] = hill
    assert not assert_as_finite_as_torch(convolution, None, x, torch.ones(1, 32, 2, 16))


@pytest.mark.parametrize("size", [1.0, 1e3, 1e5])
def test_the_native_kernel_itself_computes_what_is_large_but_sound(size):
    convolution, norm, x, _ = problem(2, 8, 8, 32, 64, 2, 0)
    with torch.no_grad():
        theirs = conv_block(x * size, convolution, norm)
        with native_kernels(True):
            assert _shape_of(x, convolution, norm) is not None
            ours = conv_block(x * size, convolution, norm)
    assert not torch.equal(ours, theirs)
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_a_run_diverges_with_the_native_kernel_where_it_does_with_torch():
    settings = ("DATASET.model_package=", "RUN.nodes=4", "RUN.rounds=9", "RUN.test_after=9")
    base, data = tiny(
        *settings, "OPTIMIZER_PARAMS.lr=1e8", model="LeNet", algorithm="dpsgd", images=tiny_images(96, 20, side=32)
    )
    for kernels in ("torch", "native"):
        with pytest.raises(RunError, match=r"diverged: the loss of node \d in round \d is (nan|inf)"):
            simulate(replace(base, run=base.run.model_copy(update={"kernels": kernels})), data)
