"""The FIGURE section of the templates: what it means, what it refuses, and what the laptop scale costs."""

import pytest

from skiptrain_plugin.engine.sweep import work
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.experiment.figures import TEMPLATES, read_template
from skiptrain_plugin.resources import template

WORK_PER_SECOND = 96 / 0.008
"""Forward passes of one image: a local step of 32 images is 96 of them and takes about 8 ms on two cores."""
MINUTES = {1: 15, 4: 15, 5: 15, 3: 45, 6: 45}


def variants(kind, number, scale, dataset="cifar", settings=()):
    return read_template(kind, number).plan(dataset, scale, settings).variants


@pytest.mark.parametrize("key", TEMPLATES, ids=lambda key: f"{key[0]}{key[1]}")
def test_every_template_loads_plans_and_runs_plainly(key, tmp_path):
    one = read_template(*key)
    plain = load(config=template(TEMPLATES[key]))
    assert plain.nodes == 256
    (tmp_path / "config.ini").write_text(plain.to_ini(), encoding="utf-8")
    assert load(config=tmp_path / "config.ini") == plain
    for dataset in one.datasets:
        for scale in ("laptop", "paper"):
            plan = one.plan(dataset, scale)
            assert plan.variants
            for variant in plan.variants:
                assert variant.experiment.facts.name == dataset
                assert not variant.experiment.figure.model_extra
                if scale == "paper":
                    assert (variant.experiment.nodes, variant.experiment.rounds) == (
                        256,
                        variant.experiment.facts.rounds,
                    )
    head = template(TEMPLATES[key]).read_text(encoding="utf-8").split("[")[0]
    for word in (f"skiptrain {key[0]} {key[1]}", "laptop", "paper", "Expected:"):
        assert word in head


@pytest.mark.parametrize("number", MINUTES)
def test_laptop_figures_fit_their_time(number):
    total = sum(work(variant.experiment).sum() for variant in variants("figure", number, "laptop"))
    assert total / WORK_PER_SECOND < 60 * MINUTES[number]


def test_figure3_is_a_grid_evaluated_after_whole_cycles():
    found = variants("figure", 3, "laptop")
    assert len(found) == 48
    assert len({variant.name for variant in found}) == 48
    assert found[1].name == "degree-6/skiptrain-1-2"
    for variant in found:
        experiment = variant.experiment
        assert experiment.run.validate_models
        assert experiment.test_after % experiment.schedule.period == 0
        assert experiment.rounds - experiment.schedule.period < experiment.test_after <= experiment.rounds
    assert {v.experiment.run.degree for v in found} == {6, 8, 10}


def test_paper_scale_has_the_papers_runs():
    found = variants("figure", 6, "paper")
    assert [v.name for v in found[:3]] == ["degree-6/skiptrain_constrained", "degree-6/greedy", "degree-6/dpsgd"]
    assert [v.experiment.test_after for v in found[:3]] == [8, 10, 10]
    assert {(v.experiment.run.precision, v.experiment.run.eval_samples) for v in found} == {("fp32", 0)}
    assert {v.experiment.rounds for v in variants("figure", 5, "paper", "femnist")} == {3000}


def test_table_and_figure_share_their_runs():
    figure = {v.name: v.experiment for v in variants("figure", 5, "laptop")}
    table = {v.name: v.experiment for v in variants("table", 3, "laptop")}
    assert figure.items() <= table.items()
    figure = {v.name: v.experiment for v in variants("figure", 6, "laptop")}
    table = {v.name: v.experiment for v in variants("table", 4, "laptop")}
    assert figure.items() <= table.items()


def test_settings_change_the_figure_and_the_runs():
    found = variants(
        "figure", 1, "laptop", settings=["FIGURE.degrees=8, 10", "RUN.rounds=12", "figure.algorithms=dpsgd"]
    )
    assert [v.name for v in found] == ["degree-8/dpsgd", "degree-10/dpsgd"]
    assert {v.experiment.rounds for v in found} == {12}
    assert {v.experiment.test_after for v in variants("figure", 4, "laptop")} == {2}
    assert variants("figure", 3, "laptop", settings=["RUN.test_after=5"])[0].experiment.test_after == 5


def test_scale_settings_may_stand_on_one_line(tmp_path):
    path = tmp_path / "mine.ini"
    text = template("figure4_train_sync.ini").read_text(encoding="utf-8")
    one_line = "laptop = RUN.nodes=16, FIGURE.degrees=4,6, RUN.rounds=8\nunused = "
    path.write_text(text.partition("laptop =")[0] + one_line.partition("unused")[0], encoding="utf-8")
    found = read_template("figure", 4, path).plan("cifar", "laptop").variants
    assert [v.experiment.run.degree for v in found] == [4, 6]
    assert {(v.experiment.nodes, v.experiment.rounds) for v in found} == {(16, 8)}


BAD = {
    "key": ("degrees = 6", "degres = 6", "unknown key in [FIGURE] 'degres'", "did you mean 'degrees'"),
    "number": ("degrees = 6", "degrees = six", "[FIGURE] degrees", "whole numbers above 0, not 'six'"),
    "zero": ("evaluate_every = 2", "evaluate_every = 0", "evaluate_every", "above 0"),
    "two": ("evaluate_every = 2", "evaluate_every = 2, 4", "expected one number"),
    "algorithm": ("algorithms = skiptrain", "algorithms = skip", "unknown algorithm 'skip'", "skiptrain"),
    "dataset": ("datasets = cifar, synthetic", "datasets = cifar, synth", "unknown dataset 'synth'"),
    "half a grid": ("degrees = 6", "degrees = 6\ntraining_rounds = 1, 2", "needs synching_rounds too"),
    "scale": ("RUN.nodes = 32", "RUN.node = 32", "unknown key in [RUN] 'node'", "did you mean 'nodes'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_figure_sections(name, tmp_path):
    old, new, *messages = BAD[name]
    text = template("figure4_train_sync.ini").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.ini"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_template("figure", 4, path).plan("cifar", "laptop")
    for message in messages:
        assert message in str(error.value)


def test_what_a_plan_refuses():
    one = read_template("figure", 5)
    with pytest.raises(InputError, match="unknown scale 'desk'; allowed: laptop, paper"):
        one.plan("cifar", "desk")
    with pytest.raises(InputError, match="--dataset mnist: figure 5 is for cifar, femnist"):
        one.plan("mnist", "laptop")
    with pytest.raises(InputError, match="varies this; use --set FIGURE.degrees"):
        one.plan("cifar", "laptop", ["RUN.degree=4"])
    with pytest.raises(InputError, match="--set FIGURE.degrees: expected FIGURE.key=value"):
        one.plan("cifar", "laptop", ["FIGURE.degrees"])
    with pytest.raises(InputError, match="figure 5 needs dpsgd"):
        one.plan("cifar", "laptop", ["FIGURE.algorithms=skiptrain"])
    with pytest.raises(InputError, match="figure 3 needs validation accuracies"):
        read_template("figure", 3).plan("cifar", "laptop", ["RUN.validate=False"])
    with pytest.raises(InputError, match="figure 4 needs evaluations inside a cycle"):
        read_template("figure", 4).plan("cifar", "laptop", ["RUN.test_after=8"])
    with pytest.raises(InputError, match=r"has no \[FIGURE\] section; figure5_skiptrain_vs_dpsgd.ini"):
        read_template("figure", 5, template("cifar.ini"))
    with pytest.raises(InputError, match="there is no figure 8; allowed: 1, 2, 3, 4, 5, 6, 7"):
        read_template("figure", 8)
