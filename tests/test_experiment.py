"""The INI, its errors, the scales, and the plan against the paper's tables."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import from_values, load
from skiptrain_plugin.experiment.ini import parse_ini
from skiptrain_plugin.experiment.plan import check_memory, make_plan
from skiptrain_plugin.resources import resource_folder
from tests.problems import DEVICE_NAMES, PAPER_TAU, PAPER_UNCONSTRAINED_WH, refused, skiptrain

AUTHORS = """[DATASET]
dataset_package = decentralizepy.datasets.CIFAR10
dataset_class = CIFAR10
model_class = LeNet
; a comment
train_dir = ../eval/data/
test_dir = ../eval/data/
sizes =
random_seed = 1234
partition_niid = kshard
shards = 2
validation_size = 0.5
validation_source = Test

[OPTIMIZER_PARAMS]
optimizer_package = torch.optim
optimizer_class = SGD
lr = 0.1

[TRAIN_PARAMS]
training_package = decentralizepy.training.Training
training_class = Training
rounds = 20
full_epochs = False
batch_size = 32
shuffle = True
loss_package = torch.nn
loss_class = CrossEntropyLoss

[COMMUNICATION]
comm_package = decentralizepy.communication.TCP
comm_class = TCP
addresses_filepath = ip.json

[SHARING]
sharing_package = decentralizepy.sharing.Sharing
sharing_class = Sharing

[NODE]
algorithm = skiptrain_constrained
consecutive_training_rounds = 1
consecutive_synching_rounds = 4
averaging = Metro-Hasting
energy_traces = trace.csv"""


@pytest.mark.parametrize("cell", PAPER_UNCONSTRAINED_WH, ids=str)
def test_plan_is_the_papers_unconstrained_table(cell):
    dataset, degree, algorithm = cell
    plan = make_plan(load(dataset=dataset, degree=degree, scale="paper", algorithm=algorithm))
    rounds, energy = PAPER_UNCONSTRAINED_WH[cell]
    assert plan.training_rounds == rounds
    assert round(plan.training_energy_wh, 2) == energy
    assert [device.tau for device in plan.devices] == PAPER_TAU[dataset]
    assert [device.nodes for device in plan.devices] == [64] * 4


@pytest.mark.parametrize(("degree", "energy"), [(6, 467.95), (8, 468.12), (10, 495.44)])
def test_plan_is_the_expected_energy_of_the_constrained_setting(degree, energy):
    plan = make_plan(load(dataset="cifar", degree=degree, scale="paper", algorithm="skiptrain_constrained"))
    assert round(plan.expected_training_energy_wh, 2) == energy
    assert plan.expected_training_energy_wh <= plan.maximal_training_energy_wh
    assert plan.devices[0].probability == pytest.approx(272 / plan.t_train)


def test_plan_communication_energy_is_the_papers_seven_watt_hours():
    base = load(dataset="cifar", degree=6, scale="paper")
    everyone = load(dataset="cifar", degree=6, scale="paper", algorithm="allreduce")
    assert make_plan(base).communication_energy_wh == pytest.approx(7)
    assert make_plan(everyone).communication_energy_wh == pytest.approx(7 * 255 / 6)


def test_plan_command(tmp_path):
    options = [
        "--dataset",
        "cifar",
        "--degree",
        "8",
        "--algorithm",
        "skiptrain_constrained",
        "--scale",
        "paper",
    ]
    document = json.loads(skiptrain("plan", *options, "--json").stdout)
    assert document["training_rounds"] == 501
    assert round(document["expected_training_energy_wh"], 2) == 468.12
    assert [d["name"] for d in document["devices"]] == DEVICE_NAMES
    assert set(document["devices"][0]) == {"name", "nodes", "wh_per_round", "tau", "probability"}
    both = json.loads(skiptrain("plan", "--algorithm", "dpsgd, greedy", "--json").stdout)
    assert [plan["algorithm"] for plan in both] == ["dpsgd", "greedy"]
    shown = skiptrain("plan", *options)
    assert "468.12 Wh" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert skiptrain("plan", *options, PYTHONIOENCODING="latin-1").returncode == 0


def test_authors_ini_runs_unchanged(tmp_path):
    (tmp_path / "trace.csv").write_text(
        "\ufeffDevice Name,Energy (Wh),Number of training rounds\nphone,0.5,100\n", encoding="utf-8"
    )
    path = tmp_path / "config.ini"
    path.write_text(AUTHORS)
    experiment = load(config=path)
    assert (experiment.nodes, experiment.rounds, experiment.seed) == (256, 1000, 1234)
    assert experiment.policy().training_probability[0] == 0.5
    assert experiment.test_after == 5
    assert experiment.dataset.sizes is None


def test_resolved_ini_reads_back_to_the_same_experiment(tmp_path):
    for experiment in (
        load(dataset="cifar", degree=10, settings=["OPTIMIZER_PARAMS.momentum=0.9", "RUN.validate=yes"]),
        load(dataset="glyphs", settings=["RUN.graph_type=ring", "RUN.rounds=7"], algorithm="greedy"),
    ):
        path = tmp_path / "config.ini"
        path.write_text(experiment.to_ini("a heading\nof two lines"))
        assert load(config=path) == experiment


@settings(max_examples=30, deadline=None)
@given(
    st.integers(8, 40),
    st.sampled_from([2, 4, 6]),
    st.integers(1, 500),
    st.integers(0, 2**32 - 1),
    st.floats(1e-6, 10),
    st.sampled_from(["dpsgd", "greedy", "skiptrain_constrained"]),
)
def test_round_trip_property(nodes, degree, rounds, seed, lr, algorithm):
    chosen = [f"RUN.nodes={nodes}", f"RUN.rounds={rounds}", f"OPTIMIZER_PARAMS.lr={lr!r}"]
    first = load(dataset="synthetic", degree=degree, seed=seed, settings=chosen, algorithm=algorithm)
    again = from_values(parse_ini(first.to_ini(), "x"), "x", [])
    assert again == first
    assert again.optimizer.lr == lr


def test_budgets_shrink_with_the_number_of_rounds():
    laptop = load(dataset="cifar", settings=["RUN.rounds=100"])
    assert [row.budget for row in laptop.trace] == [27, 32, 68, 27]


def test_seed_option_changes_everything_random():
    one, two = load(dataset="cifar", seed=1), load(dataset="cifar", seed=2)
    assert (one.seed, one.dataset.random_seed) == (1, 1)
    assert not (one.topology.edges == two.topology.edges).all()


def test_every_template_is_valid_and_says_its_command():
    templates = sorted(resource_folder("config_templates").glob("*.ini"))
    assert {path.name for path in templates} >= {"cifar.ini", "femnist.ini", "glyphs.ini", "synthetic.ini"}
    for path in templates:
        assert load(config=path).nodes == 256
        assert "skiptrain " in path.read_text().split("[")[0]


def test_memory_is_checked_before_the_run():
    with pytest.raises(InputError, match=r"needs about 2\.\d GiB of memory and 1\.0 GiB are free"):
        check_memory(load(dataset="femnist", scale="paper"), 2, 2**30)


BAD_INI = {
    "unknown section": ("[DATASETS]\nx = 1\n", "unknown section 'DATASETS'", "did you mean 'DATASET'"),
    "unknown key": (AUTHORS.replace("shards", "shard"), "unknown key in [DATASET] 'shard'", "mean 'shards'"),
    "unknown node key": (AUTHORS + "\nbattery = 3\n", "unknown key in [NODE] 'battery'"),
    "unknown algorithm": (
        AUTHORS.replace("skiptrain_constrained", "skip"),
        "[NODE]: unknown algorithm 'skip'",
    ),
    "unknown dataset": (AUTHORS.replace("= CIFAR10", "= CIFAR100"), "unknown dataset_class 'CIFAR100'"),
    "unknown averaging": (AUTHORS.replace("Metro-Hasting", "mean"), "[NODE] averaging", "'Metro-Hasting'"),
    "unknown partition": (AUTHORS.replace("kshard", "kshards"), "unknown partition_niid 'kshards'"),
    "gamma zero": (
        AUTHORS.replace("training_rounds = 1", "training_rounds = 0"),
        "Γ_train",
        "at least 1, not 0",
    ),
    "gamma negative": (
        AUTHORS.replace("synching_rounds = 4", "synching_rounds = -4"),
        "Γ_sync",
        "at least 1, not -4",
    ),
    "not a number": (AUTHORS.replace("lr = 0.1", "lr = fast"), "[OPTIMIZER_PARAMS] lr", "not 'fast'"),
    "not positive": (
        AUTHORS.replace("batch_size = 32", "batch_size = 0"),
        "[TRAIN_PARAMS] batch_size",
        "not '0'",
    ),
    "sizes": (AUTHORS.replace("sizes =", "sizes = [0.5, __import__('os')]"), "[DATASET] sizes: expected a list"),
    "sizes count": (AUTHORS.replace("sizes =", "sizes = [0.5, 0.5]"), "2 fractions for 256 nodes"),
    "fraction": (
        AUTHORS.replace("validation_size = 0.5", "validation_size = 50"),
        "validation_size",
        "not '50'",
    ),
    "missing key": (AUTHORS.replace("dataset_class = CIFAR10\n", ""), "dataset_class"),
    "twice": (AUTHORS.replace("shards = 2", "shards = 2\nshards = 3"), "line 12", "appears twice"),
    "no section": ("nodes = 3\n", "line 1: expected a [SECTION]"),
    "not key value": ("[RUN]\nnodes\n", "line 2"),
    "trace missing": (AUTHORS, "energy trace", "trace.csv does not exist"),
    "unknown sharing key": (
        AUTHORS.replace("sharing_class = Sharing", "sharing_class = Sharing\ncompres = True"),
        "unknown key in [SHARING] 'compres'",
    ),
}


@pytest.mark.parametrize("name", BAD_INI)
def test_bad_ini(name, tmp_path):
    text, *messages = BAD_INI[name]
    path = tmp_path / "bad.ini"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        load(config=path)
    for message in messages:
        assert message in str(error.value)
    assert name.startswith("gamma") or str(tmp_path) in str(error.value)


BAD_COMMANDS = {
    "odd": (["--set", "RUN.nodes=5", "--degree", "3"], "5 · 3 = 15 is odd"),
    "degree": (["--set", "RUN.nodes=6", "--degree", "6"], "allowed: 1 to 5"),
    "dataset": (["--dataset", "cifr"], "unknown dataset 'cifr'", "did you mean 'cifar'"),
    "scale": (["--scale", "paper_"], "unknown scale 'paper_'", "laptop, paper"),
    "algorithm": (["--algorithm", ","], "at least one name"),
    "set form": (["--set", "RUN.rounds"], "expected SECTION.key=value"),
    "set section": (["--set", "RUNS.rounds=3"], "unknown section 'RUNS'"),
    "set key": (["--set", "RUN.round=3"], "unknown key in [RUN] 'round'", "did you mean 'rounds'"),
    "set value": (["--set", "RUN.precision=fp16"], "[RUN] precision", "'fp32' or 'bf16'", "not 'fp16'"),
    "graph type": (["--set", "RUN.graph_type=grid"], "unknown graph_type 'grid'"),
    "eval nodes": (["--set", "RUN.eval_nodes=99"], "more than the 32 nodes"),
    "no config": (["--config", "nowhere.ini"], "nowhere.ini does not exist"),
    "contradiction": (
        ["--config", str(Path("config_templates/cifar.ini").resolve()), "--dataset", "glyphs"],
        "contradicts",
    ),
    "option": (["--degre", "3"], "--degre"),
    "model": (["--set", "DATASET.model_class=ResNet"], "comes with the model LeNet", "model_package"),
}


@pytest.mark.parametrize("name", BAD_COMMANDS)
def test_bad_commands(name):
    arguments, *messages = BAD_COMMANDS[name]
    refused(skiptrain("plan", *arguments), *messages)


def test_config_that_is_not_text(tmp_path):
    path = tmp_path / "binary.ini"
    path.write_bytes(b"\x80\x81\x82")
    refused(skiptrain("plan", "--config", path), "binary.ini is not a text file")
