"""Runs from command to record: resume, interruption, damage, and what the record says."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from skiptrain_plugin.engine.callbacks import Checkpointer
from skiptrain_plugin.engine.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from skiptrain_plugin.engine.runner import run_experiment
from skiptrain_plugin.engine.simulation import Simulation
from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.results.lines import LineWriter, cut_lines, format_line, parse_line, read_lines
from skiptrain_plugin.results.record import Run, RunDirectory, decode_mask, encode_mask, find_runs
from tests.problems import refused, skiptrain
from tests.test_engine import tiny

SETTINGS = ("RUN.rounds=9", "RUN.checkpoint_every=2", "RUN.test_after=3")
QUICK = [
    *("--dataset", "synthetic", "--degree", "2", "--workers", "2", "--precision", "fp32"),
    *("--set", "RUN.nodes=4", "--set", "RUN.eval_samples=40", "--set", "TRAIN_PARAMS.rounds=2"),
    *("--set", "DATASET.model_package=tests.tiny_models", "--set", "DATASET.model_class=Convolution"),
]


class Crash(Exception):
    """Stands for the power going off."""


class CrashAfter:
    def __init__(self, round):
        self.round = round

    def after_round(self, simulation, round):
        if round.number == self.round:
            raise Crash


def same_record(one: Run, two: Run) -> None:
    """Asserts that two runs recorded and learned the same, bit for bit."""
    for name in ("rounds.jsonl", "nodes.jsonl", "config.ini"):
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes(), name
    left, right = (load_file(run.folder / "models.safetensors") for run in (one, two))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)
    for path in (one.folder / "nodes").iterdir():
        assert path.read_bytes() == (two.folder / "nodes" / path.name).read_bytes()


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run with an optimizer that has state."""
    experiment, data = tiny(*SETTINGS, "OPTIMIZER_PARAMS.momentum=0.5", algorithm="skiptrain_constrained")
    return experiment, data, run_experiment(experiment, tmp_path_factory.mktemp("run") / "straight", data=data)


@pytest.mark.parametrize("crash", range(1, 9))
def test_killed_after_any_round_and_resumed_is_the_same_run(straight, tmp_path, crash):
    experiment, data, expected = straight
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, progress=lambda s: [CrashAfter(crash)])
    assert Run(tmp_path / "a").info["status"] == "running"
    resumed = run_experiment(experiment, tmp_path / "a", data=data, resume=True)
    assert resumed.finished
    same_record(resumed, expected)


@pytest.mark.parametrize("nodes_before_stop", [1, 4, 9])
def test_interrupted_inside_a_round_goes_on_with_the_other_nodes(straight, tmp_path, nodes_before_stop):
    experiment, data, expected = straight
    calls = []

    def stop():
        calls.append(1)
        return len(calls) > nodes_before_stop

    directory = RunDirectory(tmp_path / "a")
    one_worker = replace(experiment, run=experiment.run.model_copy(update={"workers": 1}))
    simulation = Simulation(one_worker, data)
    directory.begin(experiment, {})
    rounds, nodes = directory.writers()
    with rounds, nodes:
        from skiptrain_plugin.engine.callbacks import Recorder

        recorder = Recorder(rounds, nodes)
        assert not simulation.run([recorder], stop)
        Checkpointer(directory, recorder).save(simulation)
    directory.close()
    simulation.close()
    same_record(run_experiment(experiment, tmp_path / "a", data=data, resume=True), expected)


def test_newer_damaged_checkpoint_falls_back_to_the_older(straight, tmp_path, caplog):
    experiment, data, expected = straight
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, progress=lambda s: [CrashAfter(7)])
    newest, older = checkpoints(tmp_path / "a" / "checkpoints")
    assert [path.stem[-1] for path in (newest, older)] == ["6", "4"]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    same_record(run_experiment(experiment, tmp_path / "a", data=data, resume=True), expected)
    assert str(newest) in caplog.text
    assert "damaged" in caplog.text


def test_all_checkpoints_damaged_is_an_error_not_a_restart(straight, tmp_path):
    experiment, data, _ = straight
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, progress=lambda s: [CrashAfter(5)])
    for path in checkpoints(tmp_path / "a" / "checkpoints"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="no usable checkpoint"):
        run_experiment(experiment, tmp_path / "a", data=data, resume=True)


def test_damaged_record_line_is_named(straight, tmp_path):
    experiment, data, _ = straight
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, progress=lambda s: [CrashAfter(5)])
    path = tmp_path / "a" / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round": 2', b'"round": 7'))
    with pytest.raises(InputError, match=r"rounds\.jsonl, line 2: damaged"):
        run_experiment(experiment, tmp_path / "a", data=data, resume=True)


def test_existing_and_other_experiments_are_refused(straight, tmp_path):
    experiment, data, finished = straight
    with pytest.raises(InputError, match="already holds a run"):
        run_experiment(experiment, finished.folder, data=data)
    with pytest.raises(InputError, match="TRAIN_PARAMS.batch_size = 16 there and 8 here"):
        run_experiment(
            replace(experiment, train=experiment.train.model_copy(update={"batch_size": 8})),
            finished.folder,
            resume=True,
            data=data,
        )
    assert run_experiment(experiment, finished.folder, resume=True, data=data).finished
    directory = RunDirectory(tmp_path / "held")
    with pytest.raises(InputError, match="in use by another run"):
        RunDirectory(tmp_path / "held")
    directory.close()


def test_a_trace_that_changed_since_the_run_began_is_noticed(tmp_path):
    trace = tmp_path / "trace.csv"
    text = "device,energy per training round [Wh],training rounds [rounds]\nphone,0.5,100\n"
    trace.write_text(text)
    experiment, data = tiny("RUN.rounds=4", "RUN.checkpoint_every=1", f"NODE.energy_traces={trace}")
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, progress=lambda s: [CrashAfter(2)])
    trace.write_text(text.replace("0.5", "0.6"))
    changed, data = tiny("RUN.rounds=4", "RUN.checkpoint_every=1", f"NODE.energy_traces={trace}")
    with pytest.raises(InputError, match="energy trace has changed"):
        run_experiment(changed, tmp_path / "a", data=data, resume=True)


def test_record_says_everything(straight):
    experiment, _, run = straight
    assert [line["round"] for line in run.rounds] == list(range(1, 10))
    assert [line["kind"] for line in run.rounds] == ["training", "training", "synchronization"] * 3
    assert [line["round"] for line in run.evaluations] == [3, 6, 9]
    last = run.evaluations[-1]
    assert {"test_acc_mean", "test_acc_std", "test_loss_mean", "mean_model_test_acc", "consensus"} <= last.keys()
    assert run.info["status"] == "finished"
    assert run.info["data"]["generated"] is True
    assert {"train", "evaluate", "average", "checkpoint"} <= run.info["wall_seconds"].keys()
    assert run.experiment == experiment
    replayed = [trains for _, trains in experiment.policy().replay()]
    recorded = [decode_mask(line["trained"], experiment.nodes) for line in run.nodes]
    assert np.array_equal(replayed, recorded)
    assert [int(t.sum()) for t in replayed] == [line["trained"] for line in run.rounds]


def test_node_results_have_the_frameworks_keys(straight):
    experiment, _, run = straight
    result = json.loads((run.folder / "nodes" / "3_results.json").read_text())
    assert set(result) == {
        *("test_acc", "test_loss", "validation_acc", "validation_loss", "train_loss", "total_bytes"),
        *("action", "training_prob", "remaining_training_rounds", "training_energy_traces"),
    }
    assert set(result["test_acc"]) == {"3", "6", "9"}
    assert set(result["action"].values()) <= {"p", "np"}
    trained = sum(action == "p" for action in result["action"].values())
    assert result["remaining_training_rounds"]["9"] == experiment.trace[3].budget - trained
    assert result["total_bytes"]["9"] == 9 * 2 * 4 * experiment.architecture.parameters
    assert result["training_energy_traces"]["0"] == experiment.trace[3].wh_per_round


def test_validation_and_train_loss_are_recorded(tmp_path):
    experiment, data = tiny("RUN.rounds=4", "RUN.validate=True", "RUN.train_evaluate_after=2", "RUN.eval_nodes=2")
    run = run_experiment(experiment, tmp_path / "a", data=data)
    assert {"validation_acc_mean", "validation_loss_mean", "train_loss_mean"} <= run.rounds[-1].keys()
    assert len(run.nodes[-1]["train_loss"]) == len(run.nodes[-1]["validation_acc"]) == 2
    results = [json.loads(p.read_text()) for p in (run.folder / "nodes").iterdir()]
    assert sum(bool(result["train_loss"]) for result in results) == 2


def test_diverged_run_keeps_its_record(tmp_path):
    experiment, data = tiny("OPTIMIZER_PARAMS.lr=1e30", model="Convolution")
    with pytest.raises(RunError, match="diverged"):
        run_experiment(experiment, tmp_path / "a", data=data)
    assert Run(tmp_path / "a").info["status"] == "failed"
    assert "diverged" in Run(tmp_path / "a").info["reason"]


def test_checkpoint_round_trip_and_two_are_kept(straight, tmp_path):
    experiment, data, _ = straight
    simulation = Simulation(experiment, data)
    for _ in range(3):
        simulation._round(lambda: False)
        save_checkpoint(tmp_path, simulation.state())
    simulation.close()
    assert len(checkpoints(tmp_path)) == 2
    state = load_checkpoint(checkpoints(tmp_path)[0])
    assert state.completed_rounds == 3
    assert torch.equal(state.models, simulation.models)
    assert state.optimizer.keys() == simulation.trainer.states.keys()
    assert not list(tmp_path.glob(".*"))


def test_lines_detect_damage_and_cut_tails(tmp_path):
    path = tmp_path / "lines.jsonl"
    with LineWriter(path) as writer:
        for number in range(5):
            writer.append({"round": number, "text": 'a, "crc": "b'})
    assert [line["round"] for line in read_lines(path)] == list(range(5))
    path.write_bytes(path.read_bytes()[:-7])
    assert len(read_lines(path)) == 4
    cut_lines(path, 2)
    assert len(read_lines(path)) == 2
    with pytest.raises(InputError, match="has 2 whole lines; the checkpoint says that it had 3"):
        cut_lines(path, 3)
    line = bytearray(format_line({"x": 1.5}))
    for index in range(len(line) - 1):
        damaged = line.copy()
        damaged[index] ^= 4
        with pytest.raises(InputError, match="place: damaged"):
            parse_line(bytes(damaged[:-1]), "place")


def test_masks():
    mask = np.array([True, False, True, True, False, False, False, False, True])
    assert (decode_mask(encode_mask(mask), 9) == mask).all()


def test_command_runs_compares_and_refuses(tmp_path):
    out = tmp_path / "out"
    done = skiptrain("run", *QUICK, "--algorithm", "dpsgd,skiptrain", "--set", "RUN.rounds=8", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "synthetic images (generated, not CIFAR-10): 4 nodes, 8 rounds, 40 test samples" in done.stdout
    assert "50.0 %" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert [run.info["algorithm"] for run in find_runs([out])] == ["dpsgd", "skiptrain"]
    refused(skiptrain("run", *QUICK, "--algorithm", "dpsgd", "--out", out), "already holds a run", "--resume")
    again = skiptrain("run", "--resume", "--out", out)
    assert again.returncode == 0
    assert again.stdout == done.stdout
    refused(skiptrain("run", "--resume"), "--resume needs --out")
    assert skiptrain("run", "--resume", "--out", out, "--workers", "1").returncode == 0
    refused(skiptrain("run", *QUICK, "--algorithm", "greedy", "--resume", "--out", out), "holds dpsgd, skiptrain, not")


@pytest.mark.parametrize(("number", "algorithms"), [(signal.SIGINT, "skiptrain,greedy"), (signal.SIGTERM, "skiptrain")])
def test_signal_interrupts_and_resume_finishes(tmp_path, number, algorithms):
    out, expected = tmp_path / "out", tmp_path / "expected"
    arguments = ["run", *QUICK, "--algorithm", algorithms, "--set", "RUN.rounds=300"]
    arguments += ["--set", "RUN.checkpoint_every=0", "--set", "RUN.test_after=50"]
    process = subprocess.Popen(
        [sys.executable, "-m", "skiptrain_plugin", *arguments, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rounds = out / "skiptrain" / "rounds.jsonl"
    limit = time.monotonic() + 60
    while not (rounds.exists() and rounds.stat().st_size > 2000):
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, number)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "go on with --resume" in printed
    assert 0 < Run(out / "skiptrain").info["completed_rounds"] < 300
    assert skiptrain("run", "--resume", "--out", out).returncode == 0
    assert skiptrain(*arguments, "--out", expected).returncode == 0
    for algorithm in algorithms.split(","):
        same_record(Run(out / algorithm), Run(expected / algorithm))


def test_tensorboard_events_or_the_sentence_that_says_what_is_missing(tmp_path):
    done = skiptrain("run", *QUICK, "--set", "RUN.rounds=2", "--tensorboard", "--out", tmp_path / "out")
    if importlib.util.find_spec("tensorboard") is None:
        refused(done, "--tensorboard needs the package tensorboard")
    else:
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / "out" / "skiptrain" / "tensorboard").glob("events.out.*"))
