"""Figures, tables and sweeps from real tiny runs: files, values, reuse, interruption, refusal."""

import csv
import io
import os
import signal
import threading
import time
from xml.etree import ElementTree

import pytest
from PIL import Image

from skiptrain_plugin.cli.figure import figure, table
from skiptrain_plugin.cli.report import report
from skiptrain_plugin.cli.sweep import grid, parse_vary, sweep
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.results.record import Run, find_runs
from skiptrain_plugin.results.style import algorithm_name

MODEL = [
    *("--workers", "2", "--precision", "fp32", "--set", "RUN.eval_samples=40", "--set", "TRAIN_PARAMS.rounds=1"),
    *("--set", "DATASET.model_package=tests.tiny_models", "--set", "DATASET.model_class=Linear"),
]
TINY = [
    *("--dataset", "synthetic", *MODEL, "--set", "RUN.nodes=6", "--set", "RUN.rounds=8"),
    *("--set", "FIGURE.degrees=2,4"),
]
TITLE = "synthetic images (generated, not CIFAR-10)"


def run(command, *arguments):
    command.main([str(argument) for argument in arguments], prog_name=command.name, standalone_mode=False)


def texts(path):
    """The texts of an SVG; it must be well-formed, and its text must be text."""
    found = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()).strip() for element in found]


def drawn(folder, name, *expected):
    """Asserts that a figure's files are there and that the SVG has the expected texts."""
    with Image.open(folder / f"{name}.png") as image:
        assert image.width > 800
        assert len(image.convert("L").getcolors()) > 20
    found = texts(folder / f"{name}.svg")
    joined = "".join("".join(found).split())
    for text in expected:
        assert "".join(text.split()) in joined, (text, joined)


@pytest.fixture(scope="module")
def figure5(tmp_path_factory):
    """Figure 5 with two topologies; table 3 and the report are made from the same runs."""
    out = tmp_path_factory.mktemp("figure5")
    run(figure, 5, *TINY, "--out", out)
    return out


def test_figure5_files_and_values(figure5):
    drawn(
        figure5,
        "figure5-synthetic",
        f"{TITLE}: 6 nodes, 8 rounds",
        *("Rounds", "Training energy of all nodes [Wh]", "Test accuracy [%]", "2-regular", "4-regular"),
        *("SkipTrain", "D-PSGD"),
    )
    runs = {(r.experiment.run.degree, r.info["algorithm"]): r for r in find_runs([figure5])}
    assert set(runs) == {(2, "skiptrain"), (2, "dpsgd"), (4, "skiptrain"), (4, "dpsgd")}
    panels = enumerate(((2, "round"), (4, "round"), (2, "training_wh"), (4, "training_wh")), start=1)
    for number, (degree, axis) in panels:
        text = (figure5 / f"figure5-synthetic-panel{number}.csv").read_text(encoding="utf-8")
        rows = list(csv.DictReader(io.StringIO(text)))
        for algorithm in ("skiptrain", "dpsgd"):
            column = f"{algorithm_name(algorithm)}: Test accuracy [%]"
            key = "Rounds" if axis == "round" else "Training energy of all nodes [Wh]"
            mine = {float(row[key]): float(row[column]) for row in rows if row[column]}
            recorded = {line[axis]: line["test_acc_mean"] for line in runs[degree, algorithm].evaluations}
            assert mine == pytest.approx({round(x, 6): round(y, 6) for x, y in recorded.items()}, abs=1e-6)


def test_finished_runs_are_reused_and_files_are_the_same_bytes(figure5, capsys):
    before = {path: path.stat().st_mtime_ns for path in figure5.rglob("rounds.jsonl")}
    pictures = {path.name: path.read_bytes() for path in figure5.glob("figure5*")}
    run(figure, 5, *TINY, "--out", figure5, "--resume")
    assert "4 of 4 runs are finished already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in figure5.rglob("rounds.jsonl")} == before
    assert {path.name: path.read_bytes() for path in figure5.glob("figure5*")} == pictures


def test_table3_uses_the_figures_runs(figure5, capsys):
    run(table, 3, *TINY, "--out", figure5)
    printed = capsys.readouterr()
    assert "4 of 4 runs are finished already" in printed.err
    rows = list(csv.DictReader(io.StringIO((figure5 / "table3-synthetic.csv").read_text(encoding="utf-8"))))
    assert [(row["Topology"], row["Algorithm"]) for row in rows] == [
        ("2-regular", "SkipTrain"),
        ("2-regular", "D-PSGD"),
        ("4-regular", "SkipTrain"),
        ("4-regular", "D-PSGD"),
    ]
    assert float(rows[0]["Share of D-PSGD's energy [%]"]) == 50
    assert {row["Paper: energy [Wh]"] for row in rows} == {""}
    assert TITLE in (figure5 / "table3-synthetic.md").read_text(encoding="utf-8")
    assert r"\toprule" in (figure5 / "table3-synthetic.tex").read_text(encoding="utf-8")


def test_other_configuration_in_the_place_is_refused_before_anything_runs(figure5, capsys):
    changed = ["--set", "OPTIMIZER_PARAMS.lr=0.2"]
    with pytest.raises(InputError, match=r"holds another experiment: OPTIMIZER_PARAMS.lr = 0.1 there and 0.2 here"):
        run(figure, 5, *TINY, *changed, "--out", figure5)
    (figure5 / "empty").mkdir()
    for place in ("nowhere", "empty"):
        with pytest.raises(InputError, match="nothing to go on with"):
            run(figure, 5, *TINY, "--out", figure5 / place, "--resume")


def test_report_over_the_same_runs(figure5, tmp_path, capsys):
    run(report, figure5, "--out", tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert "50.0 % saved" in printed
    assert "figure5-synthetic" in page
    assert "Some of these data are generated" in page
    drawn(tmp_path, "figure5-synthetic", TITLE)
    drawn(tmp_path, "figure7-synthetic", TITLE, "Node", "Class")
    assert (tmp_path / "table3.tex").exists()
    assert not (tmp_path / "table4.tex").exists()


def test_figures_1_and_6_and_table_4(tmp_path):
    small = [*TINY, "--set", "FIGURE.degrees=2"]
    run(figure, 1, *small, "--out", tmp_path)
    drawn(
        tmp_path,
        "figure1-synthetic",
        *("D-PSGD: mean of the nodes", "D-PSGD: average of all models", "D-PSGD with all-reduce in every round", TITLE),
    )
    out = tmp_path / "constrained"
    run(figure, 6, *small, "--out", out)
    drawn(out, "figure6-synthetic", "Greedy", "SkipTrain-constrained", "D-PSGD", "equal energy", TITLE)
    run(table, 4, *small, "--out", out)
    assert "at equal energy" in (out / "table4-synthetic.md").read_text(encoding="utf-8")


def test_figures_3_and_4(tmp_path):
    grid_of_four = ["--set", "FIGURE.training_rounds=1,2", "--set", "FIGURE.synching_rounds=1,2"]
    run(figure, 3, *TINY, *grid_of_four, "--out", tmp_path)
    drawn(tmp_path, "figure3-synthetic", "validation accuracy [%]", "[rounds]", "of all nodes [Wh]", TITLE)
    best = find_runs([tmp_path])[0]
    assert "validation_acc_mean" in best.evaluations[-1]
    run(figure, 4, *TINY, "--set", "FIGURE.degrees=2", "--out", tmp_path)
    drawn(tmp_path, "figure4-synthetic", "training rounds", "one standard deviation over nodes", "Rounds", TITLE)
    values = (tmp_path / "figure4-synthetic.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in values[1:]] == ["2", "4", "6", "8"]


def test_figures_and_tables_without_training(tmp_path, capsys):
    run(figure, 2, "--out", tmp_path)
    drawn(tmp_path, "figure2-cifar", "CIFAR-10: 32 nodes", "Round", "Node 0 (Xiaomi 12 Pro)", "SkipTrain")
    run(figure, 7, "--dataset", "synthetic", "--out", tmp_path)
    drawn(tmp_path, "figure7-synthetic", TITLE, "256 nodes, 2 shards a node", "Node", "Class")
    run(table, 1, "--scale", "paper", "--out", tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table1-cifar-femnist.csv").read_text(encoding="utf-8"))))
    assert all(row[name] == row[f"{name}, paper"] for row in rows for name in ("cifar", "femnist"))
    run(table, 2, "--scale", "paper", "--out", tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table2-cifar-femnist.csv").read_text(encoding="utf-8"))))
    for row in rows:
        for name in ("cifar", "femnist"):
            assert row[f"{name}: τ [rounds]"] == row[f"{name}, paper: τ [rounds]"]
            assert f"{float(row[f'{name} [mWh]']):.2g}" == f"{float(row[f'{name}, paper [mWh]']):g}"
    assert not find_runs([tmp_path])


def interrupt_when(path, size):
    """Sends SIGINT to this process as soon as ``path`` has ``size`` bytes."""

    def watch():
        limit = time.monotonic() + 60
        while time.monotonic() < limit and not (path.exists() and path.stat().st_size > size):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_interrupted_sweep_goes_on_and_loses_nothing(tmp_path, capsys):
    arguments = [
        *("synthetic.ini", *MODEL, "--set", "RUN.nodes=4", "--set", "RUN.degree=2", "--set", "RUN.rounds=152"),
        *("--set", "RUN.checkpoint_every=0", "--vary", "NODE.algorithm=dpsgd,skiptrain", "--vary", "RUN.seed=1,2"),
    ]
    out = tmp_path / "out"
    second = out / "NODE.algorithm=dpsgd,RUN.seed=2"
    watcher = interrupt_when(second / "rounds.jsonl", 1500)
    with pytest.raises(SystemExit) as ended:
        run(sweep, *arguments, "--out", out)
    watcher.join()
    assert ended.value.code == 130
    assert "The same command goes on from there" in capsys.readouterr().out
    assert Run(out / "NODE.algorithm=dpsgd,RUN.seed=1").finished
    assert 0 < Run(second).info["completed_rounds"] < 152
    run(sweep, *arguments, "--out", out)
    printed = capsys.readouterr()
    assert "1 of 4 runs are finished already" in printed.err
    assert len(Run(second).info["resumed"]) == 1
    rows = list(csv.DictReader(io.StringIO((out / "sweep.csv").read_text(encoding="utf-8"))))
    assert [(row["NODE.algorithm"], row["RUN.seed"]) for row in rows] == [
        *(("dpsgd", "1"), ("dpsgd", "2"), ("skiptrain", "1"), ("skiptrain", "2")),
    ]
    for row in rows:
        one = Run(out / f"NODE.algorithm={row['NODE.algorithm']},RUN.seed={row['RUN.seed']}")
        assert float(row["Test accuracy [%]"]) == pytest.approx(one.evaluations[-1]["test_acc_mean"], abs=1e-6)
        assert row["State"] == "finished"


def test_failed_run_is_named_and_the_others_go_on(tmp_path, capsys):
    arguments = [
        *("synthetic.ini", *MODEL, "--set", "RUN.nodes=4", "--set", "RUN.degree=2", "--set", "RUN.rounds=3"),
        *("--set", "DATASET.model_class=Convolution", "--set", "TRAIN_PARAMS.rounds=3"),
        *("--vary", "OPTIMIZER_PARAMS.lr=1e30,0.1"),
    ]
    with pytest.raises(SystemExit) as ended:
        run(sweep, *arguments, "--out", tmp_path)
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "Failed: OPTIMIZER_PARAMS.lr=1e30" in printed
    assert "diverged" in printed
    assert Run(tmp_path / "OPTIMIZER_PARAMS.lr=0.1").finished


def test_figure_whose_runs_all_fail_says_why(tmp_path, capsys):
    wild = ["--set", "OPTIMIZER_PARAMS.lr=1e30", "--set", "DATASET.model_class=Convolution"]
    with pytest.raises(SystemExit) as ended:
        run(figure, 4, *TINY, *wild, "--set", "TRAIN_PARAMS.rounds=3", "--set", "FIGURE.degrees=2", "--out", tmp_path)
    assert ended.value.code == 1
    assert "diverged" in capsys.readouterr().out


def test_damaged_run_of_a_figure_is_named_and_ends_with_1(tmp_path, capsys):
    arguments = [*TINY, "--set", "FIGURE.degrees=2", "--out", tmp_path]
    run(figure, 5, *arguments)
    path = tmp_path / "synthetic" / "degree-2" / "dpsgd" / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"test_acc_mean": ', b'"test_acc_mean": 9', 1))
    with pytest.raises(SystemExit) as ended:
        run(figure, 5, *arguments)
    assert ended.value.code == 1
    assert "checksum" in capsys.readouterr().out


def test_finished_runs_with_another_trace_are_not_reused(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("device,energy per training round [Wh],training rounds [rounds]\na,0.5,3\n", encoding="utf-8")
    arguments = ["synthetic.ini", *MODEL, "--set", "RUN.nodes=4", "--set", "RUN.degree=2", "--set", "RUN.rounds=2"]
    arguments += ["--set", f"NODE.energy_traces={trace}", "--vary", "RUN.seed=1,2", "--out", tmp_path / "out"]
    run(sweep, *arguments)
    trace.write_text("device,energy per training round [Wh],training rounds [rounds]\na,0.7,3\n", encoding="utf-8")
    with pytest.raises(InputError, match="the energy trace has changed since the run began"):
        run(sweep, *arguments)


def test_a_mistyped_path_is_not_a_template(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        run(sweep, tmp_path / "synthetic.ini", "--vary", "RUN.degree=2,4")


def test_grid_and_its_errors():
    axes = [parse_vary("node.Algorithm = dpsgd, greedy"), parse_vary("RUN.degree=6,8,6")]
    assert axes == [("NODE.algorithm", ("dpsgd", "greedy")), ("RUN.degree", ("6", "8"))]
    assert grid(axes)[1] == (("NODE.algorithm", "dpsgd"), ("RUN.degree", "8"))
    assert len(grid(axes)) == 4
    for text in ("RUN.degree", "degree=1,2", "RUN.degree=", "=1", "RUN.degree=,"):
        with pytest.raises(InputError, match="expected SECTION.key=v1,v2"):
            parse_vary(text)
    with pytest.raises(InputError, match="did you mean 'degree'"):
        parse_vary("RUN.degre=1,2")
    with pytest.raises(InputError, match="RUN.workers does not change what a run computes"):
        parse_vary("RUN.workers=1,2")
    with pytest.raises(InputError, match="given twice"):
        grid([axes[0], axes[0]])
    with pytest.raises(InputError, match="at most 10000"):
        grid([("RUN.seed", tuple(map(str, range(200)))), ("RUN.rounds", tuple(map(str, range(200))))])
