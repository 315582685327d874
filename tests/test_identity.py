"""One identity of a run: data, kernel and versions are checked when it goes on, and what may change is recorded."""

import json

import numpy as np
import pytest

from skiptrain_plugin.engine.node_data import load_node_data
from skiptrain_plugin.engine.runner import run_experiment
from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.results.consistency import recorded_trace
from skiptrain_plugin.results.readings import read_record
from skiptrain_plugin.results.record import Run, inputs_digest
from tests.test_engine import tiny
from tests.test_run import Crash, CrashAfter

FEW = ("RUN.rounds=4", "RUN.checkpoint_every=1", "RUN.test_after=2")


def broken_off(folder, **changed):
    """A run that ended after round 2 of 4; ``changed`` is what its run.json then says otherwise."""
    experiment, data = tiny(*FEW)
    with pytest.raises(Crash):
        run_experiment(experiment, folder, data=data, progress=lambda s: [CrashAfter(2)])
    path = folder / "run.json"
    info = json.loads(path.read_text())
    for key, value in changed.items():
        info[key] = info[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(info))
    return experiment, data


def test_the_record_says_program_and_machine(tmp_path):
    experiment, data = tiny(*FEW)
    info = run_experiment(experiment, tmp_path / "a", data=data).info
    assert info["versions"].keys() >= {"skiptrain_plugin", "python", "numpy"}
    assert info["host"]["processor"]
    assert len(info["commit"].rstrip("+")) in (0, 40), "a checkout's commit, or none"
    assert info["trace"] == [[row.name, row.wh_per_round, row.budget] for row in experiment.trace]
    assert info["workers"] >= 1


REFUSED = {
    "another kernel": ({"kernels": "native"}, "the kernel was native when the run began and is torch here"),
    "other data": ({"data": {"sha256": "1" * 64}}, f"the data's sha256 was {'1' * 64} when the run began"),
    "another torch": ({"torch": "2.3.0"}, "the run began with torch 2.3.0 and this is torch 2."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_numbers_is_refused_and_nothing_is_lost(tmp_path, name):
    changed, message = REFUSED[name]
    experiment, data = broken_off(tmp_path / "a", **changed)
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*.*") if path.is_file()}
    with pytest.raises(InputError) as error:
        run_experiment(experiment, tmp_path / "a", data=data, resume=True)
    assert message in str(error.value)
    assert {path: path.read_bytes() for path in before} == before


def test_what_may_change_is_an_event_from_its_round_on_and_reports_show_it(tmp_path):
    import torch

    patch = ".".join([*torch.__version__.split("+")[0].split(".")[:2], "999"])
    experiment, data = broken_off(tmp_path / "a", torch=patch, host={"processor": "another one"})
    run = run_experiment(experiment, tmp_path / "a", data=data, resume=True)
    assert run.info["torch"] == patch, "what it began with stays"
    events = {event["what"]: event for event in run.info["events"]}
    assert events.keys() == {"torch", "processor"}
    assert events["torch"] == {"after_round": 2, "what": "torch", "before": patch, "after": torch.__version__}
    [first, _] = read_record(run).caveats
    assert first == f"from round 3 on torch is {torch.__version__}, before {patch}"


def test_the_same_event_is_recorded_once(tmp_path):
    experiment, data = broken_off(tmp_path / "a", host={"processor": "another one"})
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, resume=True, progress=lambda s: [CrashAfter(3)])
    run = run_experiment(experiment, tmp_path / "a", data=data, resume=True)
    assert [event["what"] for event in run.info["events"]] == ["processor"]


def test_labels_that_were_changed_in_the_cache_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("SKIPTRAIN_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))  # the data of other tests and runs stay as they are
    settings = ["RUN.nodes=4", "RUN.degree=2", "RUN.eval_samples=40", *FEW]
    settings += ["DATASET.model_package=tests.tiny_models", "DATASET.model_class=Linear"]
    experiment = load(dataset="synthetic", settings=settings)
    data = load_node_data(experiment)
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, progress=lambda s: [CrashAfter(2)])
    assert Run(tmp_path / "a").info["data"]["checked"] == "every byte"
    labels = np.load(data.source.folder / "test_y.npy", mmap_mode="r+")
    labels[:] = 0
    labels.flush()
    del labels
    for resume, folder in ((True, "a"), (False, "new")):
        with pytest.raises(RunError, match=r"cached data are damaged \(test_y.npy has sha256"):
            run_experiment(experiment, tmp_path / folder, resume=resume)


def test_a_record_made_before_energy_followed_the_workload_can_be_read_but_not_gone_on_with(tmp_path):
    settings = ("NODE.energy_traces=cifar.csv", "NODE.budget_horizon=")
    experiment, data = tiny(*FEW, *settings)
    as_it_stands = experiment.trace_file.rows
    assert experiment.trace != as_it_stands, "tiny problems have another workload than the paper's"
    run = run_experiment(experiment, tmp_path / "a", data=data)
    info = run.info | {"inputs_sha256": inputs_digest(experiment, as_it_stands), "status": "interrupted"}
    del info["trace"]
    (tmp_path / "a" / "run.json").write_text(json.dumps(info))
    assert recorded_trace(Run(tmp_path / "a"), experiment) == as_it_stands
    with pytest.raises(InputError, match="trace as it stands, which is scaled now"):
        run_experiment(experiment, tmp_path / "a", data=data, resume=True)
