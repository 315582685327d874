"""Training energy follows the experiment's own |x|, batch and E; worked out by hand from the device table."""

import json

import pytest

from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.experiment.plan import make_plan
from skiptrain_plugin.resources import packaged_trace
from tests.problems import PAPER_MWH, PAPER_TAU, PAPER_UNCONSTRAINED_WH, skiptrain
from tests.test_energy import authors_csv

OWN_MODEL = ["DATASET.model_package=tests.tiny_models", "DATASET.model_class=Linear"]
"""192 inputs, 10 outputs: 1930 parameters."""


def xiaomi_wh(parameters: int, batch: int, steps: int) -> float:
    """Xiaomi 12 Pro: 27 ms, 17.7 W."""
    return 17.7 * (27 * parameters / 3_504_872 * 3 * batch * steps) / 3.6e6


@pytest.mark.parametrize(
    ("setting", "factor"),
    [
        ("TRAIN_PARAMS.rounds=2", 0.1),
        ("TRAIN_PARAMS.batch_size=320", 10),
        ("ENERGY.parameters=1530", 1530 / 89_834),
    ],
)
def test_energy_and_budget_follow_each_factor(setting, factor):
    experiment = load(dataset="cifar", scale="paper", settings=[setting])
    row = experiment.trace[0]
    wh = 6.532875e-3 * factor
    assert row.wh_per_round == pytest.approx(wh, rel=1e-6)
    assert row.budget == int(1.78 / row.wh_per_round), "the battery's share is kept: 10 % of 17.8 Wh"
    paper = PAPER_UNCONSTRAINED_WH["cifar", 6, "skiptrain"][1]
    assert make_plan(experiment).training_energy_wh == pytest.approx(paper * factor, rel=1e-5)


def test_energy_follows_the_size_of_a_model_of_ones_own():
    experiment = load(dataset="synthetic", settings=OWN_MODEL)
    assert experiment.energy.parameters == 1930
    assert experiment.trace[0].wh_per_round == pytest.approx(xiaomi_wh(1930, 32, 20), rel=1e-12)


def test_passes_over_the_data_are_charged_by_their_steps():
    settings = ["TRAIN_PARAMS.full_epochs=True", "TRAIN_PARAMS.rounds=2", "RUN.nodes=256"]
    experiment = load(dataset="cifar", settings=settings)
    assert experiment.workload.local_steps == 14, "196 samples per node are 7 batches, twice"
    assert experiment.trace[0].wh_per_round == pytest.approx(xiaomi_wh(89_834, 32, 14))
    assert any("14 local steps" in note for note in make_plan(experiment).notes)


def test_a_trace_of_ours_is_scaled_and_the_plan_says_so():
    settings = ["NODE.energy_traces=femnist.csv", "NODE.budget_horizon="]
    experiment = load(dataset="cifar", scale="paper", settings=settings)
    share = [8.9, 9.7, 8.705, 11.6]
    for row, mwh, allowance in zip(experiment.trace, PAPER_MWH["cifar"], share, strict=True):
        assert row.wh_per_round == pytest.approx(mwh / 1000, rel=1e-6), "the same phone, the same work"
        assert row.budget == int(allowance / (mwh / 1000)), "half of the battery, as the trace has it"
    [note] = make_plan(experiment).notes
    assert "femnist.csv was made for |x| 1690046, batch 16, 7 local steps" in note
    assert "scaled by 0.303742 to this run's |x| 89834, batch 32, 20 local steps" in note


def test_the_authors_trace_is_taken_for_the_papers_workload(tmp_path):
    path = tmp_path / "Energy_traces_CIFAR.csv"
    path.write_bytes(authors_csv("cifar").encode())
    same = load(dataset="cifar", scale="paper", settings=[f"NODE.energy_traces={path}"])
    assert [row.budget for row in same.trace] == PAPER_TAU["cifar"]
    assert make_plan(same).notes == []
    twice = load(dataset="cifar", scale="paper", settings=[f"NODE.energy_traces={path}", "TRAIN_PARAMS.rounds=40"])
    assert twice.trace[0].wh_per_round == pytest.approx(2 * 6.532875e-3, rel=1e-6)
    assert [row.budget for row in twice.trace] == [tau // 2 for tau in PAPER_TAU["cifar"]]
    [note] = make_plan(twice).notes
    assert "is taken to be made for the paper's |x| 89834, batch 32, 20 local steps; it is scaled by 2" in note


def test_a_trace_of_ones_own_is_taken_as_it_stands_and_the_plan_says_so(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("device,energy per training round [Wh],training rounds [rounds]\na,2,7\n")
    settings = [f"NODE.energy_traces={path}", "TRAIN_PARAMS.rounds=40"]
    mine = load(dataset="cifar", scale="paper", settings=settings)
    assert [(row.wh_per_round, row.budget) for row in mine.trace] == [(2.0, 7)]
    assert make_plan(mine).notes == [
        "the energy trace mine.csv does not say for which workload it was made and is taken as it stands"
    ]


@pytest.mark.parametrize("dataset", ["cifar", "femnist"])
def test_derived_and_shipped_traces_are_the_same_to_the_last_bit(dataset):
    derived = load(dataset=dataset, scale="paper")
    shipped = load(dataset=dataset, scale="paper", settings=[f"NODE.energy_traces={dataset}.csv"])
    assert derived.node.energy_traces is None
    assert derived.trace == shipped.trace
    assert make_plan(shipped).notes == []


def test_a_resolved_experiment_needs_no_model_to_know_its_energy(tmp_path):
    path = tmp_path / "resolved.ini"
    resolved = load(dataset="synthetic", settings=OWN_MODEL).to_ini()
    path.write_text(resolved.replace("tests.tiny_models", "no_such_module"))
    assert load(config=path).trace[0].wh_per_round == pytest.approx(xiaomi_wh(1930, 32, 20))


def test_own_devices_and_share(tmp_path):
    table = tmp_path / "phones.csv"
    table.write_text("device,mobilenet_v2 [ms],power [W],battery [Wh]\nmine,10,36,10\n")
    settings = [f"ENERGY.devices={table}", "ENERGY.battery_share=0.25", "ENERGY.parameters=3504872"]
    [row] = load(dataset="cifar", scale="paper", settings=[*settings, "TRAIN_PARAMS.rounds=10"]).trace
    assert row.wh_per_round == pytest.approx(0.096), "36 W for 10 ms · 3 · 32 samples · 10 steps"
    assert row.budget == 26, "2.5 Wh pay for 26 rounds of 0.096 Wh"


def test_the_command_shows_it():
    plan = json.loads(skiptrain("plan", "--dataset", "cifar", "--json", "--set", "TRAIN_PARAMS.rounds=2").stdout)
    whole = json.loads(skiptrain("plan", "--dataset", "cifar", "--json").stdout)
    assert plan["training_energy_wh"] == pytest.approx(whole["training_energy_wh"] / 10)
    assert plan["notes"] == []
    scaled = skiptrain("plan", "--set", "NODE.energy_traces=cifar.csv", "--set", "TRAIN_PARAMS.rounds=2")
    assert "Note: the energy trace cifar.csv was made for" in scaled.stdout
    shown = skiptrain("energy", "show", packaged_trace("cifar.csv"))
    assert "|x| 89834, batch 32, 20 local steps" in shown.stdout
