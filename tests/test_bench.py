"""The bench measures what it says: quick parts here, the whole behind the marker."""

import json

import pytest
import torch

from skiptrain_plugin.bench.measure import interleaved, machine, measure_mixing, measure_rounds, peak_memory
from skiptrain_plugin.bench.subjects import Engine, Floor, PaperLeNet, Plain
from skiptrain_plugin.models import LeNet
from tests.problems import skiptrain


def test_interleaving_takes_turns_and_gives_medians():
    calls = []

    def subject(name, values):
        return lambda: calls.append(name) or values.pop(0)

    subjects = {"a": subject("a", [9, 1, 5, 3]), "b": subject("b", [9, 2, 2, 8])}
    assert interleaved(subjects, 3) == {"a": 3, "b": 2}
    assert calls == ["a", "b"] * 4


def test_every_subject_runs_and_takes_time():
    plain = Plain(1)
    engine = Engine("bf16")
    try:
        assert 0 < plain.seconds("step", 2) < 5
        assert 0 < engine.step_seconds(2) < 5
        assert 0 < Floor(torch.float32, 1).step_seconds(1) < 5
    finally:
        plain.close()
        engine.close()


def test_plain_model_is_the_same_function_as_the_engines():
    plain, ours = PaperLeNet(), LeNet()
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3, 32, 32)
    assert torch.allclose(plain(x), ours(x), atol=1e-5)


def test_mixing_and_rounds():
    mixing = measure_mixing(2, 1)
    assert mixing["rounds_per_s"] > 0
    assert 0 < mixing["of_bandwidth"] < 4
    rounds = measure_rounds((8, 16))
    assert set(rounds) == {"8", "16"}
    assert machine(2)["torch"] == torch.__version__


@pytest.mark.long
@pytest.mark.timeout(900)
def test_whole_bench_and_memory_limits():
    done = skiptrain("bench", "--quick", "--json", timeout=800)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["local_step"]) == {"plain_ms", "fp32_ms", "bf16_ms", "floor_fp32_ms", "floor_bf16_ms"}
    assert set(result["evaluation"]) == {"plain_s", "fp32_s", "bf16_s"}
    assert result["peak_memory_mb"]["cifar_256"] < 2000
    assert result["peak_memory_mb"]["femnist_256"] < 8000
    assert peak_memory("cifar_256") < 2000
