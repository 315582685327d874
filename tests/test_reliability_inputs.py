"""Damaged, hostile and absurd input files: everything either works or is refused with one sentence."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skiptrain_plugin.algorithm.graph_text import format_graph
from skiptrain_plugin.algorithm.topology import generate
from skiptrain_plugin.data.leaf import read_leaf
from skiptrain_plugin.engine.checkpoint import checkpoints, load_checkpoint
from skiptrain_plugin.engine.runner import run_experiment
from skiptrain_plugin.errors import SkipTrainError
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.experiment.files import read_devices, read_graph, read_trace
from skiptrain_plugin.experiment.plan import make_plan
from skiptrain_plugin.resources import packaged_trace, template
from skiptrain_plugin.results.record import Run, find_runs
from tests.problems import refused, skiptrain
from tests.test_engine import tiny

HOSTILE = ["nan", "inf", "-1", "0", "1e999", "9" * 400, "../../etc/passwd", "\x00", "\ufeff", "%(x)s", "${HOME}", "é"]
FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def damaged(draw, content: bytes):
    """``content`` after one or two accidents: cut, flipped, doubled, replaced by something hostile, re-encoded."""
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        lines = content.split(b"\n")
        line = draw(st.integers(0, len(lines) - 1))
        what = draw(st.integers(0, 7))
        if what == 0:
            content = content[:place]
        elif what == 1 and content:
            content = content[:place] + bytes([content[place] ^ (1 << draw(st.integers(0, 7)))]) + content[place + 1 :]
        elif what == 2:
            content = b"\n".join([*lines[:line], lines[line], lines[line], *lines[line + 1 :]])
        elif what == 3:
            content = b"\n".join([*lines[:line], *lines[line + 1 :]])
        elif what == 4:
            hostile = draw(st.sampled_from(HOSTILE)).encode()
            key, sign, _ = lines[line].partition(b"=")
            content = b"\n".join([*lines[:line], key + sign + hostile, *lines[line + 1 :]])
        elif what == 5:
            content = content[:place] + draw(st.sampled_from(HOSTILE)).encode() + content[place:]
        elif what == 6:
            content = content + draw(st.binary(max_size=40))
        else:
            content = content.decode("utf-8", "replace").encode(draw(st.sampled_from(["utf-16", "latin-1"])), "replace")
    return content


def survives(action):
    """Runs ``action``; the only exception allowed is one of this project's, with a message of one sentence."""
    try:
        return action()
    except SkipTrainError as error:
        message = str(error).strip()
    assert message
    assert "\n" not in message
    return None


INI = template("cifar.ini").read_bytes().replace(b"nodes = 256", b"nodes = 16").replace(b"rounds = 1000", b"rounds = 9")


@FEW
@given(damaged(INI))
def test_ini(tmp_path, content):
    path = tmp_path / "a.ini"
    path.write_bytes(content)

    def whole():
        experiment = load(config=path)
        if experiment.nodes <= 512 and experiment.rounds <= 5000 and experiment.run.degree <= 64:
            make_plan(experiment)

    survives(whole)


@FEW
@given(st.sampled_from(["edges", "adjacency"]), st.data())
def test_graph(tmp_path, graph_type, data):
    path = tmp_path / "graph.txt"
    path.write_bytes(data.draw(damaged(format_graph(generate("regular", 10, 4, 1), graph_type).encode())))
    graph = survives(lambda: read_graph(path, graph_type))
    assert graph is None or abs(graph.weights.sum() - graph.nodes) < 1e-9


@FEW
@given(damaged(packaged_trace("cifar.csv").read_bytes()))
def test_trace(tmp_path, content):
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    rows = survives(lambda: read_trace(path).rows)
    assert rows is None or all(row.wh_per_round > 0 and row.budget >= 0 for row in rows)


@FEW
@given(damaged(packaged_trace("devices.csv").read_bytes()))
def test_devices(tmp_path, content):
    path = tmp_path / "devices.csv"
    path.write_bytes(content)
    survives(lambda: read_devices(path))


LEAF = json.dumps(
    {
        "users": ["a", "b"],
        "num_samples": [2, 1],
        "user_data": {"a": {"x": [[0.5] * 784] * 2, "y": [0, 61]}, "b": {"x": [[1.0] * 784], "y": [5]}},
    }
).encode()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged(LEAF))
def test_leaf(tmp_path, content):
    path = tmp_path / "leaf.json"
    path.write_bytes(content)
    survives(lambda: read_leaf(path))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    experiment, data = tiny("RUN.rounds=4", "RUN.checkpoint_every=2", "OPTIMIZER_PARAMS.momentum=0.5")
    folder = tmp_path_factory.mktemp("recorded") / "run"
    run_experiment(experiment, folder, data=data)
    return folder


@FEW
@given(st.sampled_from(["rounds.jsonl", "nodes.jsonl", "run.json", "config.ini"]), st.data())
def test_record(recorded, tmp_path, name, data):
    original = (recorded / name).read_bytes()
    for kept in ("rounds.jsonl", "nodes.jsonl", "run.json", "config.ini"):
        (tmp_path / kept).write_bytes((recorded / kept).read_bytes())
    content = data.draw(damaged(original))
    (tmp_path / name).write_bytes(content)
    rounds = survives(lambda: Run(tmp_path).rounds)
    survives(lambda: Run(tmp_path).nodes)
    survives(lambda: Run(tmp_path).finished)
    survives(lambda: Run(tmp_path).experiment)
    survives(lambda: find_runs([tmp_path]))
    if name == "rounds.jsonl" and rounds:
        assert rounds == Run(recorded).rounds[: len(rounds)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_checkpoint(recorded, tmp_path, data):
    original = checkpoints(recorded / "checkpoints")[0].read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    cut = data.draw(st.booleans())
    changed = original[:place] if cut else original[:place] + bytes([original[place] ^ 16]) + original[place + 1 :]
    path = tmp_path / "round-00000004.safetensors"
    path.write_bytes(changed)
    state = survives(lambda: load_checkpoint(path))
    if state is not None:
        intact = load_checkpoint(checkpoints(recorded / "checkpoints")[0])
        assert (state.models == intact.models).all()
        assert state.completed_rounds == intact.completed_rounds


def test_path_tricks_are_only_paths(tmp_path):
    for trick in ("../../../../etc/passwd", "/dev/zero", "/proc/self/mem", "~", "\\\\host\\share", "a\tb", "x" * 5000):
        refused(skiptrain("plan", "--set", f"NODE.energy_traces={trick}"))
