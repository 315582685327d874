"""Tables 3 and 4, the equal-energy reading and figure data against hand-written records."""

import pytest

from skiptrain_plugin.algorithm.schedule import RoundKind
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.results import figures, paper_values
from skiptrain_plugin.results.charts import LinePanel, Series
from skiptrain_plugin.results.paper_tables import table1, table3, table4
from skiptrain_plugin.results.readings import collect
from skiptrain_plugin.results.tables import Table, latex
from tests.problems import PAPER_MWH, PAPER_TAU, PAPER_UNCONSTRAINED_WH
from tests.records import accuracy, constrained_set, grid_set, write_record

DEVICES = 0.006532874786868108 + 0.0059860763112984825 + 0.0025562828732880022 + 0.008519120249374774
"""Wh of a training round of four nodes, one with each phone."""


def as_dicts(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_papers_values_agree_with_each_other():
    for (dataset, degree, algorithm), (_, energy) in PAPER_UNCONSTRAINED_WH.items():
        assert paper_values.TABLE3[dataset, degree, algorithm].energy_wh == energy
    assert paper_values.TABLE4["femnist", 10, "greedy"].energy_wh == 2460.41
    assert "1460.41" in paper_values.TABLE4_NOTE
    assert len(paper_values.TABLE3) == 12
    assert len(paper_values.TABLE4) == 18
    for dataset, devices in paper_values.TABLE2.items():
        assert [tau for _, tau in devices.values()] == PAPER_TAU[dataset]
        for (printed, _), full in zip(devices.values(), PAPER_MWH[dataset], strict=True):
            assert float(f"{full:.2g}") == printed


def test_table3_by_hand(tmp_path):
    write_record(tmp_path / "a", "skiptrain", nodes=8, rounds=16)
    write_record(tmp_path / "b", "dpsgd", nodes=8, rounds=16)
    table = table3(collect([tmp_path]).families)
    ours, base = as_dicts(table)
    assert base["Energy [Wh]"] == pytest.approx(2 * DEVICES * 16)
    assert ours["Energy [Wh]"] == pytest.approx(2 * DEVICES * 8)
    assert ours["Share of D-PSGD's energy [%]"] == pytest.approx(50)
    assert ours["Paper: share [%]"] == pytest.approx(50)
    assert (ours["Paper: energy [Wh]"], base["Paper: energy [Wh]"]) == (755.02, 1510.04)
    assert ours["Test accuracy [%]"] == accuracy("skiptrain", 16, 8)
    assert base["Test accuracy [%]"] == accuracy("dpsgd", 16, 16)
    assert ours["Over D-PSGD [points]"] == pytest.approx(accuracy("skiptrain", 16, 8) - accuracy("dpsgd", 16, 16))
    assert ours["Paper: over D-PSGD [points]"] == pytest.approx(65.09 - 57.55)
    assert base["Over D-PSGD [points]"] is None
    assert any("8 nodes and 16 rounds" in note for note in table.notes)


def test_accuracy_is_read_after_the_last_whole_cycle(tmp_path):
    write_record(tmp_path / "a", "skiptrain", nodes=12, degree=8, rounds=16)
    write_record(tmp_path / "b", "dpsgd", nodes=12, degree=8, rounds=16)
    ours, base = as_dicts(table3(collect([tmp_path]).families))
    assert ours["Γ_train/Γ_sync"] == "3/3"
    assert (ours["Read at round"], base["Read at round"]) == (12, 16)
    assert ours["Test accuracy [%]"] == accuracy("skiptrain", 12, 6, 8)
    assert ours["Energy [Wh]"] == pytest.approx(3 * DEVICES * 9)


def test_accuracy_read_inside_a_cycle_is_said(tmp_path):
    for algorithm in ("skiptrain", "dpsgd"):
        write_record(tmp_path / algorithm, algorithm, nodes=12, rounds=6)
    table = table3(collect([tmp_path]).families)
    assert as_dicts(table)[0]["Read at round"] == 6
    assert any("SkipTrain" in note and "inside a cycle" in note for note in table.notes)


def test_table1_prints_a_learning_rate_as_it_is():
    table = table1([load(dataset="cifar", settings=["OPTIMIZER_PARAMS.lr=0.0125"])])
    assert "| 0.0125 | 0.1 |" in table.to_markdown()


def test_values_at_the_same_energy_are_all_kept():
    line = Series("Greedy", "greedy", (1.0, 2.5, 2.5, 2.5), (10.0, 20.0, 21.0, 22.0))
    table = LinePanel("6-regular", "Energy [Wh]", "Accuracy [%]", (line,)).table()
    assert table.rows == ((1.0, 10.0), (2.5, 20.0), (2.5, 21.0), (2.5, 22.0))


def test_table4_reads_at_equal_energy_by_hand(tmp_path):
    constrained_set(tmp_path)
    collection = collect([tmp_path])
    rows = as_dicts(table4(collection.families))
    assert [row["Algorithm"] for row in rows[:3]] == ["SkipTrain-constrained", "Greedy", "D-PSGD"]
    family = collection.families[0]
    for degree, chosen in ((6, rows[:3]), (8, rows[3:])):
        limit = family.pick("skiptrain_constrained", f"{degree}-regular").training_wh[-1]
        assert chosen[0]["Energy [Wh]"] == limit
        for row, algorithm in zip(chosen[1:], ("greedy", "dpsgd"), strict=True):
            energies = family.pick(algorithm, f"{degree}-regular").training_wh
            expected = max(number for number, energy in enumerate(energies, start=1) if energy <= limit + 1e-12)
            assert row["Read at round"] == expected
            assert row["Energy [Wh]"] == energies[expected - 1] <= limit + 1e-12
        assert chosen[2]["Read at round"] == int(limit / (4 * DEVICES))
        assert chosen[2]["Test accuracy [%]"] == accuracy(
            "dpsgd", int(limit / (4 * DEVICES)), int(limit / (4 * DEVICES)), degree
        )
        assert chosen[0]["Paper: energy [Wh]"] == {6: 462.7, 8: 463.1}[degree]


def test_unfinished_runs_give_no_final_number(tmp_path):
    write_record(tmp_path / "a", "skiptrain")
    write_record(tmp_path / "b", "dpsgd", stop=16)
    write_record(tmp_path / "c", "skiptrain_constrained", stop=20)
    table = table3(collect([tmp_path]).families)
    ours, base = as_dicts(table)
    assert base["Test accuracy [%]"] is None
    assert base["Energy [Wh]"] is None
    assert ours["Over D-PSGD [points]"] is None
    assert any("unfinished: round 16 of 24" in note for note in table.notes)
    assert all(row["Test accuracy [%]"] is None for row in as_dicts(table4(collect([tmp_path]).families)))


def test_unfinished_baseline_is_read_only_when_it_has_passed_the_energy(tmp_path):
    write_record(tmp_path / "a", "skiptrain_constrained")
    limit = collect([tmp_path]).records[0].training_wh[-1]
    needed = int(limit / (4 * DEVICES))
    write_record(tmp_path / "b", "dpsgd", stop=needed, settings=["RUN.test_after=1"])
    assert collect([tmp_path / "b"]).records[0].at_energy(limit) is None
    write_record(tmp_path / "c", "dpsgd", stop=needed + 1, settings=["RUN.test_after=1"])
    assert collect([tmp_path / "c"]).records[0].at_energy(limit).round == needed


def test_generated_data_get_no_paper_values(tmp_path):
    for algorithm in ("skiptrain", "dpsgd"):
        write_record(tmp_path / algorithm, algorithm, dataset="synthetic", title="synthetic images (generated)")
    for row in as_dicts(table3(collect([tmp_path]).families)):
        assert row["Paper: energy [Wh]"] is None
        assert row["Paper: accuracy [%]"] is None


def test_best_cell_is_the_papers_rule():
    cells = {(3, 3): (66.34, 756.5), (4, 3): (66.26, 850.0), (4, 4): (66.1, 755.0), (1, 4): (66.31, 900.0)}
    assert figures.best_cell(cells) == (3, 3)
    assert figures.best_cell({(1, 1): (50.0, 2.0), (1, 2): (50.04, 1.0)}) == (1, 2)


def test_heatmap_values_equal_the_records(tmp_path):
    grid_set(tmp_path)
    family = collect([tmp_path]).families[0]
    chart = figures.figure3(family, "figure3")
    assert [panel.title[:9] for panel in chart.panels] == ["6-regular", "8-regular", "Training "]
    panel = chart.panels[0]
    assert (panel.training, panel.synching) == ((1, 2), (1, 2))
    assert panel.values[1][0] == accuracy("skiptrain", 12, 8) + 1
    assert panel.best == (2, 1)
    assert chart.panels[2].values[1][1] == pytest.approx(4 * DEVICES * 6)


def test_figure_data_equal_the_records(tmp_path):
    constrained_set(tmp_path / "a")
    write_record(tmp_path / "b", "skiptrain", settings=["RUN.test_after=2"], rounds=16)
    one, other = collect([tmp_path]).families
    first = figures.figure1(one, "figure1").panels[0]
    assert [series.style for series in first.series] == ["dpsgd", "mean_model", "allreduce"]
    assert first.series[0].y[4] == accuracy("dpsgd", 5, 5)
    assert first.series[1].y[4] == accuracy("dpsgd", 5, 5) + 5
    operations = figures.figure2(one, "figure2")
    assert [panel.title.split(",")[0] for panel in operations.panels] == [
        "D-PSGD",
        "SkipTrain",
        "SkipTrain-constrained",
    ]
    experiment = one.pick("skiptrain_constrained", "6-regular").experiment
    replayed = [trains[:4].tolist() for _, trains in experiment.policy().replay(16)]
    assert [list(row) for row in operations.panels[2].trains] == [list(row) for row in zip(*replayed, strict=True)]
    fourth = figures.figure4(other, "figure4").panels[0]
    assert fourth.series[0].x == (2, 4, 6, 8, 10, 12, 14, 16)
    assert fourth.series[0].band[:4] == (3.0, 3.0, 0.5, 0.5)
    assert fourth.shaded == ((0, 4), (8, 12))
    fifth = figures.figure5(one, "figure5")
    assert fifth.columns == 2
    assert fifth.panels[2].series[1].x[23] == pytest.approx(4 * DEVICES * 24)
    sixth = figures.figure6(one, "figure6")
    assert sixth.panels[2].marks[0].x == one.pick("skiptrain_constrained", "6-regular").training_wh[-1]


def test_training_spans():
    train, sync = RoundKind.TRAINING, RoundKind.SYNCHRONIZATION
    assert figures.training_spans([train, train, sync, train]) == ((0, 2), (3, 4))
    assert figures.training_spans([sync]) == ()


def test_three_forms_of_a_table_are_safe():
    table = Table("A & B", ("Γ_train", "=x [%]"), (("a|b", 1.23456), ("=cmd()", None), ("<b>", 7)), ("100 % of $5",))
    assert table.to_csv().splitlines() == ["Γ_train,'=x [%]", "a|b,1.23456", "'=cmd(),", "<b>,7"]
    markdown = table.to_markdown()
    assert "| a\\|b | 1.23 |" in markdown
    assert "&lt;b&gt;" in markdown
    assert "| =cmd() | – |" in markdown
    tex = table.to_latex()
    assert r"\caption{A \& B}" in tex
    assert r"$\Gamma$\_train & =x [\%] \\" in tex
    assert r"100 \% of \textdollar{}5" in tex
    assert latex("|ξ|") == r"$|\xi|$"
