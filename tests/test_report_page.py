"""The report over whatever is there: missing, unfinished, mixed, damaged, hostile; never a wrong number."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.results.lines import LineWriter, read_lines
from skiptrain_plugin.results.page import page
from skiptrain_plugin.results.report import build, write
from tests.records import constrained_set, write_record

VOID = {"meta", "link", "br", "img", "input"}


class Structure(HTMLParser):
    """Counts elements and checks that they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        for name, value in attributes:
            assert not name.startswith("on")
            assert not (name in ("src", "href") and not value.startswith(("#", "data:")))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def full(tmp_path):
    constrained_set(tmp_path / "runs")
    return tmp_path / "runs"


def test_page_is_whole_and_needs_nothing_else(full, tmp_path):
    files = write(build([full]), tmp_path / "out")
    assert {path.suffix for path in files} == {".png", ".svg", ".csv", ".md", ".tex", ".html"}
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    structure = Structure(text)
    assert len(structure.ids) == len(set(structure.ids))
    assert structure.tags.count("script") == 2
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    for word in ("Glossary", "In the paper", "Configuration", "energy saved", "Figure 5", "Figure 6", "Table 4"):
        assert word in text
    values = json.loads(re.search(r'<script id="values" type="application/json">(.*?)</script>', text, re.S)[1])
    assert all(panel["hits"] for panel in values.values())
    assert page(build([full])) == text


def test_headline_only_for_what_may_be_compared(full, tmp_path):
    sentences = [headline.sentence for headline in build([full]).headlines]
    assert len(sentences) == 4
    assert "50.0 % saved" in sentences[0]
    other = tmp_path / "other"
    write_record(other / "a", "skiptrain")
    write_record(other / "b", "dpsgd", rounds=32)
    write_record(other / "c", "dpsgd", settings=["RUN.seed=7"])
    write_record(other / "d", "dpsgd", nodes=20)
    write_record(other / "e", "dpsgd", degree=8)
    write_record(other / "f", "dpsgd", dataset="synthetic", title="synthetic (generated)")
    write_record(other / "g", "dpsgd", info={"data": {"title": "CIFAR-10", "sha256": "cd" * 32}})
    report = build([other])
    assert report.headlines == ()
    assert "there is no headline" in page(report)
    assert report.tables == {}


def test_unfinished_run_is_said(tmp_path):
    write_record(tmp_path / "a", "skiptrain")
    write_record(tmp_path / "b", "dpsgd", stop=16)
    report = build([tmp_path])
    assert report.headlines == ()
    text = page(report)
    assert "unfinished: round 16 of 24" in text
    assert "Figure 5" in text


def test_single_run_and_run_without_evaluation(tmp_path):
    write_record(tmp_path / "a", "greedy")
    assert "Accuracy of the runs" in page(build([tmp_path]))
    write_record(tmp_path / "b" / "x", "dpsgd", stop=2)
    text = page(build([tmp_path / "b"]))
    assert "has no evaluation yet (unfinished: round 2 of 24)" in text


def test_missing_algorithms_are_said(tmp_path):
    write_record(tmp_path / "a", "skiptrain")
    write_record(tmp_path / "b", "dpsgd", average_model=False)
    write_record(tmp_path / "c", "skiptrain_constrained")
    text = page(build([tmp_path]))
    assert "no run of algorithm greedy" in text
    assert 'id="figure1-cifar"' not in text


def test_datasets_are_kept_apart(tmp_path):
    for dataset, title in (("cifar", "CIFAR-10"), ("synthetic", "synthetic images (generated, not CIFAR-10)")):
        for algorithm in ("skiptrain", "dpsgd"):
            write_record(tmp_path / dataset / algorithm, algorithm, dataset=dataset, title=title)
    report = build([tmp_path])
    assert [part.family.dataset for part in report.parts] == ["cifar", "synthetic"]
    assert len(report.headlines) == 2
    names = [chart.name for part in report.parts for chart in part.charts]
    assert {"figure5-cifar", "figure5-synthetic"} <= set(names)
    assert len(names) == len(set(names))


def test_set_ups_that_differ_in_seed_or_training_can_be_told_apart(tmp_path):
    for seed in (1, 2):
        for algorithm in ("skiptrain", "dpsgd"):
            write_record(tmp_path / f"{algorithm}{seed}", algorithm, settings=[f"RUN.seed={seed}"])
    report = build([tmp_path])
    assert {part.family.subtitle for part in report.parts} == {
        "CIFAR-10: 16 nodes, 24 rounds, RUN.seed 1",
        "CIFAR-10: 16 nodes, 24 rounds, RUN.seed 2",
    }
    data = {row[report.tables["table3"].columns.index("Data")] for row in report.tables["table3"].rows}
    assert data == {"CIFAR-10, RUN.seed 1", "CIFAR-10, RUN.seed 2"}
    files = write(report, tmp_path / "report")
    assert len(files) == len(set(files))


def test_small_worlds_of_different_degree_are_different_topologies(tmp_path):
    for degree in (4, 6):
        write_record(tmp_path / str(degree), "dpsgd", degree=degree, settings=["RUN.graph_type=small_world"])
    (family,) = build([tmp_path]).collection.families
    assert family.topologies == ["small_world, degree 4", "small_world, degree 6"]


def test_repeated_configuration_counts_once(tmp_path):
    write_record(tmp_path / "a", "skiptrain", stop=8)
    write_record(tmp_path / "b", "skiptrain")
    collection = build([tmp_path]).collection
    assert [record.run.folder.name for record in collection.records] == ["b"]
    assert "repeats the configuration" in collection.problems[0]


def damage_line(folder):
    path = folder / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"test_acc_mean": 1', b'"test_acc_mean": 9', 1))


def damage_json(folder):
    (folder / "run.json").write_text('{"status": "finished"', encoding="utf-8")


def lose_rounds(folder):
    path = folder / "rounds.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))


def other_nodes(folder):
    info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps(info | {"nodes": 99}), encoding="utf-8")


def lose_config(folder):
    (folder / "config.ini").unlink()


def strange_config(folder):
    (folder / "config.ini").write_bytes(b"\x80\x00")


def change_config(old, new):
    def change(folder):
        text = (folder / "config.ini").read_text(encoding="utf-8")
        assert old in text
        (folder / "config.ini").write_text(text.replace(old, new), encoding="utf-8")

    return change


DAMAGE = {
    "degree": (change_config("degree = 6", "degree = 8"), "topology or the energy trace has changed"),
    "dataset": (change_config("dataset_class = CIFAR10", "dataset_class = Synthetic"), "says dataset 'cifar'"),
    "line": (damage_line, "checksum does not match"),
    "json": (damage_json, "run.json is damaged"),
    "rounds": (lose_rounds, "records 21 of 24 rounds"),
    "nodes": (other_nodes, "run.json says nodes 99, config.ini 16"),
    "config": (lose_config, "does not exist"),
    "binary": (strange_config, "not a text file"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_record_is_named_and_left_out(name, tmp_path):
    damage, reason = DAMAGE[name]
    for algorithm in ("skiptrain", "dpsgd"):
        write_record(tmp_path / algorithm, algorithm)
    damage(tmp_path / "dpsgd")
    report = build([tmp_path])
    assert [record.algorithm for record in report.collection.records] == ["skiptrain"]
    assert reason in report.collection.problems[0]
    assert report.headlines == ()
    assert "Left out" in page(report)
    shutil.rmtree(tmp_path / "skiptrain")
    with pytest.raises(InputError, match="no run to report on"):
        build([tmp_path])


def test_impossible_numbers_are_refused(tmp_path):
    write_record(tmp_path / "a", "dpsgd")
    write_record(tmp_path / "b", "skiptrain")
    for change in ({"test_acc_mean": 140.0}, {"training_wh": -1.0}, {"training_wh": "much"}, {"kind": "nap"}):
        path = tmp_path / "a" / "rounds.jsonl"
        lines = read_lines(path)
        path.unlink()
        with LineWriter(path) as writer:
            for line in lines:
                writer.append(line | change if line["round"] == 8 else line)
        report = build([tmp_path])
        assert [record.algorithm for record in report.collection.records] == ["skiptrain"], change
        path.unlink()
        with LineWriter(path) as writer:
            for line in lines:
                writer.append(line)


CONTRADICTIONS = {
    "mask": ({"trained": "0001"}, "trained is 16, but from the nodes' own values it is 1"),
    "accuracy": ({"test_acc": [50.0] * 16}, "test_acc_mean is"),
    "spread": ({"test_loss": [1.0] * 16}, "test_loss_mean is 1.5, but from the nodes' own values it is 1"),
    "no values": ({"test_acc": []}, "test_acc_mean is recorded, but nodes.jsonl has no value of any node"),
    "bytes": ({"bytes": 5}, "communication_wh is"),
    "another round": ({"round": 5}, "nodes.jsonl has round 5 in its place"),
    "no mask": ({"trained": None}, "nodes.jsonl is damaged"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_record_that_contradicts_itself_is_left_out(tmp_path, name):
    change, message = CONTRADICTIONS[name]
    for algorithm in ("skiptrain", "dpsgd"):
        write_record(tmp_path / algorithm, algorithm)
    path = tmp_path / "dpsgd" / "nodes.jsonl"
    lines = read_lines(path)
    path.unlink()
    with LineWriter(path) as writer:
        for line in lines:
            writer.append(line | change if line["round"] == 8 else line)
    report = build([tmp_path])
    assert [record.algorithm for record in report.collection.records] == ["skiptrain"]
    [problem] = report.collection.problems
    assert "round 8" in problem
    assert message in problem


def test_energy_that_does_not_follow_from_who_trained_is_left_out(tmp_path):
    write_record(tmp_path / "skiptrain", "skiptrain")
    path = tmp_path / "skiptrain" / "rounds.jsonl"
    lines = read_lines(path)
    path.unlink()
    with LineWriter(path) as writer:
        for line in lines:
            writer.append(line | {"training_wh": line["training_wh"] * 0.5})
    with pytest.raises(InputError, match="round 1: training_wh is .* but from the nodes' own values"):
        build([tmp_path])


def test_caveats_stand_below_the_table_of_runs(tmp_path):
    event = {"after_round": 8, "what": "torch", "before": "2.13.0", "after": "2.13.1"}
    info = {"lost_nodes": {"3": "killed by signal 9"}, "events": [event], "warnings": ["the trace is scaled"]}
    write_record(tmp_path / "skiptrain", "skiptrain", info=info)
    html = page(build([tmp_path]))
    for words in (
        "node 3 was lost: killed by signal 9",
        "from round 9 on torch is 2.13.1, before 2.13.0",
        "the trace is scaled",
    ):
        assert words in html


def test_no_run_at_all(tmp_path):
    with pytest.raises(InputError, match="no run to report on"):
        build([tmp_path])
    with pytest.raises(InputError, match="is not a directory"):
        build([tmp_path / "nowhere"])


def test_markup_in_a_record_stays_text_everywhere(tmp_path):
    evil = '</script><script>alert("x")</script><img src=x onerror=alert(1)>$\\frac{'
    info = {"command": ["/usr/bin/skiptrain", evil, 7], "reason": evil, "engine": evil, "host": {"system": evil}}
    info["data"] = {"title": evil, "source": evil, "sha256": evil, "test_samples": evil, "generated": False}
    for algorithm in ("skiptrain", "dpsgd"):
        write_record(tmp_path / algorithm, algorithm, info=info)
    write_record(tmp_path / "c", "greedy", info=info, stop=9)
    files = write(build([tmp_path]), tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    structure = Structure(text)
    assert structure.tags.count("script") == 2
    assert "img" not in structure.tags
    assert 'alert("x")' not in text
    assert all(path.stat().st_size > 0 for path in files)
    assert "<script" not in (tmp_path / "out" / "table3.md").read_text(encoding="utf-8")


def test_differences_from_the_paper_are_computed(tmp_path):
    write_record(tmp_path / "a", "dpsgd", settings=["RUN.precision=bf16"])
    rows = {row[0]: row[1:] for row in build([tmp_path]).parts[0].differences.rows}
    assert rows["nodes"] == ("16", "256")
    assert rows["rounds T"] == ("24", "1000")
    assert rows["precision of the arithmetic"] == ("bf16", "fp32")
    assert rows["test samples evaluated (0: all)"] == ("1000", "0")
    assert "engine" in rows
    assert "learning rate η" not in rows


def test_output_that_cannot_be_written(full, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        write(build([full]), tmp_path / "file")
