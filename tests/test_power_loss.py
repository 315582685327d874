"""The power goes off at any moment of a real run: nothing that was kept is lost, nothing damaged is taken as whole."""

import json
import os
import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from skiptrain_plugin.atomic import make_folder, remove_leftovers, replacing
from skiptrain_plugin.data import store
from skiptrain_plugin.deployment import node_files, snapshots
from skiptrain_plugin.engine.checkpoint import load_newest
from skiptrain_plugin.engine.runner import run_experiment
from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.results.lines import LineWriter, cut_lines, read_lines
from skiptrain_plugin.results.record import Run, write_atomically
from tests.data_problems import cache
from tests.power_loss import Recorder, losses, put
from tests.test_data_store import numbers
from tests.test_engine import tiny
from tests.test_run import Crash, CrashAfter, same_record

__all__ = ["cache"]

FINISHED = "finished"


def short_run():
    return tiny(
        *("RUN.nodes=4", "RUN.rounds=7", "RUN.checkpoint_every=2", "RUN.test_after=3", "OPTIMIZER_PARAMS.momentum=0.5"),
        algorithm="skiptrain_constrained",
    )


class Promises:
    """Tells the recorder after which round the newest checkpoint was written."""

    def __init__(self, recorder):
        self.recorder = recorder

    def after_round(self, simulation, round):
        if round.number % 2 == 0:
            self.recorder.promise(round.number)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run that broke off in round 5 and was resumed to the end, every system call of it noted."""
    experiment, data = short_run()
    expected = run_experiment(experiment, tmp_path_factory.mktemp("expected") / "run", data=data)
    root = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patches:
        recorder = Recorder(root, patches)
        with pytest.raises(Crash):
            run_experiment(
                experiment, root / "runs" / "a", data=data, progress=lambda s: [Promises(recorder), CrashAfter(5)]
            )
        run_experiment(experiment, root / "runs" / "a", data=data, resume=True, progress=lambda s: [Promises(recorder)])
        recorder.promise(FINISHED)
        moments = recorder.close()
    same_record(Run(root / "runs" / "a"), expected)
    return experiment, data, expected, recorder.calls, moments


def check(recorded, loss, place):
    """After a loss: what was promised is there, and a resumed run ends like one that nothing happened to."""
    experiment, data, expected, _, _ = recorded
    moment, tree = loss
    folder = put(tree, place) / "runs" / "a"
    if moment.promise is not None:
        assert (folder / "run.json").exists(), f"moment {moment.number}: run.json is lost"
    if moment.promise == FINISHED:
        assert Run(folder).finished
    elif moment.promise is not None:
        state = load_newest(folder / "checkpoints")
        assert state is not None, f"moment {moment.number}: the checkpoint of round {moment.promise} is lost"
        assert state.completed_rounds >= moment.promise
    run = run_experiment(experiment, folder, data=data, resume=True)
    same_record(run, expected)
    assert run.finished
    assert run.info["completed_rounds"] == 7
    assert {path.name for path in folder.rglob(".*")} <= {".lock"}


def test_resumed_after_a_power_loss_at_chosen_moments(recorded, tmp_path):
    moments = recorded[-1]
    after_promises = [now for before, now in pairwise(moments) if before.promise != now.promise]
    assert [moment.promise for moment in after_promises] == [2, 4, 6, FINISHED]
    chosen = [(moment, tree) for moment in after_promises for tree in (moment.lost(), moment.names_only(b"\0"))]
    chosen += random.Random(1).sample(losses(moments, mixtures=2), 30)
    for number, loss in enumerate(chosen):
        check(recorded, loss, tmp_path / str(number))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_resumed_after_a_power_loss_at_every_moment(recorded, tmp_path):
    everything = losses(recorded[-1], mixtures=20)
    assert len(everything) > 200
    for number, loss in enumerate(everything):
        check(recorded, loss, tmp_path / str(number))


def test_what_is_finished_was_written_in_this_order(recorded):
    """The lines, the models and each node's results are on the disk before run.json says that there are all."""
    calls = [(name, path.replace(f".{os.getpid()}", "")) for name, path in recorded[3] if name in ("fsync", "replace")]
    end = calls[calls.index(("replace", "runs/a/checkpoints/round-00000006.safetensors")) + 2 :]
    results = [
        (name, path)
        for uid in range(4)
        for name, path in (
            ("fsync", f"runs/a/nodes/.{uid}_results.json"),
            ("replace", f"runs/a/nodes/{uid}_results.json"),
            ("fsync", "runs/a/nodes"),
        )
    ]
    assert end == [
        ("fsync", "runs/a/nodes.jsonl"),
        ("fsync", "runs/a/rounds.jsonl"),
        ("fsync", "runs/a/.models.safetensors"),
        ("replace", "runs/a/models.safetensors"),
        ("fsync", "runs/a"),
        ("fsync", "runs/a"),  # its new folder, nodes
        *results,
        ("fsync", "runs/a/.run.json"),
        ("replace", "runs/a/run.json"),
        ("fsync", "runs/a"),
    ]


def test_a_failed_run_keeps_the_lines_of_its_rounds(tmp_path, monkeypatch):
    experiment, data = tiny("OPTIMIZER_PARAMS.lr=1e9", "TRAIN_PARAMS.rounds=1", "RUN.test_after=5", model="Convolution")
    recorder = Recorder(tmp_path, monkeypatch)
    with pytest.raises(RunError, match="diverged"):
        run_experiment(experiment, tmp_path / "a", data=data)
    left = put(recorder.close()[-1].lost(), tmp_path / "left") / "a"
    info = json.loads((left / "run.json").read_text())
    assert info["status"] == "failed"
    assert info["completed_rounds"] > 0
    assert [line["round"] for line in read_lines(left / "rounds.jsonl")] == [*range(1, info["completed_rounds"] + 1)]
    assert len(read_lines(left / "nodes.jsonl")) == info["completed_rounds"]


def test_a_file_is_replaced_in_this_order(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("old")
    recorder = Recorder(tmp_path, monkeypatch)
    write_atomically(tmp_path / "a.json", "new")
    with replacing(tmp_path / "b", durable=False) as temporary:
        temporary.write_bytes(b"not worth waiting for")
    moments = recorder.close()
    own = f".a.json.{os.getpid()}"
    kept = [call for call in recorder.calls if call[0] != "open"]
    assert kept == [("fsync", own), ("replace", "a.json"), ("fsync", "."), ("replace", "b")]
    assert {moment.killed()["a.json"] for moment in moments} == {b"old", b"new"}
    assert {tree["a.json"] for _, tree in losses(moments, mixtures=20)} == {b"old", b"new"}
    assert (tmp_path / "a.json").read_text() == "new"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_a_file_that_could_not_be_written_is_as_it_was_and_nothing_is_left_behind(tmp_path, error):
    path = tmp_path / "a.json"
    path.write_text("old")
    writing = replacing(path)
    writing.__enter__().write_text("half")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    assert not writing.__exit__(error, error(), None)
    assert [(child.name, child.read_text()) for child in tmp_path.iterdir()] == [("a.json", "old")]


def test_new_folders_and_new_files_of_lines_are_there_after_a_loss(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path, monkeypatch)
    make_folder(tmp_path / "x" / "y" / "z")
    recorder.promise("folders")
    with LineWriter(tmp_path / "x" / "y" / "lines.jsonl") as lines:
        recorder.promise("file")
        lines.append({"round": 1})
        lines.sync()
        recorder.promise("line")
        lines.append({"round": 2})
    recorder.promise("closed")
    cut_lines(tmp_path / "x" / "y" / "lines.jsonl", 1)
    recorder.promise("cut")
    moments = {moment.promise: moment.lost() for moment in reversed(recorder.close())}
    assert moments["folders"] == {"x": None, "x/y": None, "x/y/z": None}
    assert moments["file"]["x/y/lines.jsonl"] == b""
    assert [moments[name]["x/y/lines.jsonl"].count(b"\n") for name in ("line", "closed", "cut")] == [1, 2, 1]
    make_folder(tmp_path / "x" / "y")


def test_lines_without_a_run_are_not_added_to(tmp_path):
    experiment, data = short_run()
    with LineWriter(tmp_path / "rounds.jsonl") as lines:
        lines.append({"round": 1})
    before = (tmp_path / "rounds.jsonl").read_bytes()
    with pytest.raises(InputError, match="has a rounds.jsonl but no run.json to say of which run"):
        run_experiment(experiment, tmp_path, data=data, resume=True)
    assert (tmp_path / "rounds.jsonl").read_bytes() == before


def test_an_entry_of_the_data_cache_is_whole_or_absent_after_a_loss(cache, tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patches:
        recorder = Recorder(tmp_path, patches)
        digest = store.obtain("numbers", numbers).digest
        recorder.promise("built")
        moments = recorder.close()
    lost, seen = moments[-1].lost(), moments[-1].killed()
    assert all(
        lost[f"cache/numbers/{name}"] == seen[f"cache/numbers/{name}"] for name in ("a.npy", "b.npy", "meta.json")
    )
    for number, (moment, tree) in enumerate(losses(moments, mixtures=20)):
        root = put(tree, tmp_path / f"loss-{number}") / "cache"
        monkeypatch.setenv("SKIPTRAIN_DATA", str(root))
        assert store.obtain("numbers", numbers).digest == digest
        assert store.verify(root / "numbers") == [], moment.number


def test_what_the_nodes_of_a_deployment_keep_is_there_after_a_loss(tmp_path, monkeypatch):
    vector, counters = np.arange(4, dtype=np.float32), np.array([7])
    recorder = Recorder(tmp_path, monkeypatch)
    node_files.save_node_checkpoint(tmp_path, 3, 8, vector, counters, counters + 1, {})
    node_files.save_atomically({"w": torch.ones(2)}, tmp_path / "0_model.safetensors")
    for uid in (0, 1):
        node_files.save_snapshot(node_files.snapshot_path(tmp_path, 8, uid), vector + 2 * uid)
    snapshots.gather(tmp_path, [0, 1])
    left = put(recorder.close()[-1].lost(), tmp_path / "left")
    assert node_files.load_node_checkpoint(left, 3, 8).models.tolist() == [[0, 1, 2, 3]]
    assert node_files.load_model(left / "0_model.safetensors")["w"].tolist() == [1, 1]
    ((consensus, mean),) = snapshots.means(left).values()
    assert consensus == 2
    assert mean.tolist() == [1, 2, 3, 4]


def test_only_temporary_files_of_the_named_kinds_are_removed(tmp_path):
    below = tmp_path / "checkpoints" / "00000002"
    below.mkdir(parents=True)
    kept = [".run.json", "run.json.12", ".run.json.12x", ".history.12", ".lock", "run.json", ".other.txt.7"]
    for name in (".run.json.12", ".round-1.safetensors.345", *kept):
        (tmp_path / name).write_text("x")
        (below / name).write_text("x")
    (tmp_path / ".folder.json.1").mkdir()
    (tmp_path / ".link.json.1").symlink_to(tmp_path / "run.json")
    remove_leftovers(tmp_path, "*.json", "*.safetensors")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "checkpoints", ".folder.json.1", ".link.json.1"}
    assert len(list(below.iterdir())) == len(kept) + 2
    remove_leftovers(tmp_path, "*.json", "*.safetensors", below=True)
    assert {path.name for path in below.iterdir()} == set(kept)
    remove_leftovers(tmp_path / "nowhere", "*")
