"""A run whose loss has lost all sense says so: once, in the log, in its record and at its end."""

import json
import logging
import math

import numpy as np
import pytest

from skiptrain_plugin.engine.evaluation import senseless_loss
from skiptrain_plugin.engine.runner import run_experiment
from tests.problems import skiptrain
from tests.test_engine import tiny
from tests.test_run import QUICK, Crash, CrashAfter


def test_senseless_is_ten_times_the_loss_of_guessing():
    assert senseless_loss(10) == pytest.approx(23.02585)
    assert senseless_loss(62) == pytest.approx(10 * math.log(62))


def test_said_once_at_the_first_evaluation_that_shows_it(tmp_path, caplog):
    experiment, data = tiny("OPTIMIZER_PARAMS.lr=1e4", "RUN.rounds=6", "RUN.test_after=2", "RUN.train_evaluate_after=3")
    with caplog.at_level(logging.WARNING):
        run = run_experiment(experiment, tmp_path / "a", data=data)
    losses = [float(np.mean(line["test_loss"])) for line in run.nodes if "test_loss" in line]
    assert min(losses) > 10 * math.log(4)
    (warning,) = run.info["warnings"]
    assert warning.startswith(f"the mean test loss in round 2 is {losses[0]:.6g}; above 13.9, 10 times")
    assert [record.getMessage() for record in caplog.records] == [f"skiptrain: {warning}"]
    assert run.finished


def test_training_loss_alone_shows_it_too(tmp_path):
    experiment, data = tiny("OPTIMIZER_PARAMS.lr=1e4", "RUN.rounds=3", "RUN.test_after=9", "RUN.train_evaluate_after=2")
    assert (
        run_experiment(experiment, tmp_path / "a", data=data)
        .info["warnings"][0]
        .startswith("the mean training loss in round 2 is")
    )


def test_resumed_run_does_not_repeat_it(tmp_path, caplog):
    experiment, data = tiny("OPTIMIZER_PARAMS.lr=1e4", "RUN.rounds=6", "RUN.test_after=2", "RUN.checkpoint_every=2")
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, progress=lambda simulation: [CrashAfter(3)])
    kept = json.loads((tmp_path / "a" / "run.json").read_text())["warnings"]
    caplog.clear()
    run = run_experiment(experiment, tmp_path / "a", data=data, resume=True)
    assert len(kept) == 1
    assert run.info["warnings"] == kept
    assert not caplog.records


def test_sound_run_has_no_warning(tmp_path):
    experiment, data = tiny("RUN.rounds=3")
    assert not run_experiment(experiment, tmp_path / "a", data=data).info["warnings"]


def test_the_command_ends_with_it(tmp_path):
    command = ["run", *QUICK, "--set", "RUN.rounds=2", "--set", "DATASET.model_class=Linear", "--algorithm", "dpsgd"]
    done = skiptrain(*command, "--set", "OPTIMIZER_PARAMS.lr=1e4", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning, dpsgd: the mean test loss in round 2 is" in done.stdout
    assert done.stderr.count("training has gone astray") == 1
