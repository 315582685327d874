"""``skiptrain launch`` on the real DecentralizePy: torchvision, the end of a run, names and ports, losses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from skiptrain_plugin import framework
from skiptrain_plugin.cli.launch import launch as launch_command
from skiptrain_plugin.deployment.node_files import lines_path, read_rounds
from skiptrain_plugin.deployment.plan import Deployment, Flags, from_flags
from skiptrain_plugin.deployment.ports import free_offset
from skiptrain_plugin.deployment.preflight import check_classes
from skiptrain_plugin.engine.node_data import node_data
from skiptrain_plugin.engine.simulation import Simulation
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.results.record import FINISHED, Run
from tests.framework_problems import as_official, tiny_ini, write_cifar_batches
from tests.problems import refused, skiptrain, tiny_images
from tests.test_plugin_deployment import AUTHORS
from tests.test_plugin_parity import OWN_SHARING

pytestmark = pytest.mark.skipif(not framework.installed(), reason=framework.MISSING)

TINY = {"nodes": 3, "degree": 2, "test_after": 2, "checkpoint_every": 1}


def write_ini(folder: Path, text: str) -> Path:
    path = folder / "experiment.ini"
    path.write_text(text)
    return path


def launch_it(path: Path, folder: Path, *more: str):
    return CliRunner().invoke(launch_command, ["-cf", str(path), "-ld", str(folder), *more])


# torchvision.


@pytest.fixture
def cifar_folder(tmp_path, monkeypatch):
    """A working directory with ``data/cifar-10-batches-py``, and processes that take it for the official one."""
    known = write_cifar_batches(tmp_path / "data")
    places = [str(as_official(known, tmp_path / "hook")), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*places, str(Path(__file__).parent.parent)]))
    (tmp_path / "ip.json").write_text('{"0": "localhost"}')
    (tmp_path / "graph.txt").write_text("4\n0 1\n1 2\n2 3\n3 0\n")
    return tmp_path


def test_the_authors_ini_runs_on_the_frameworks_own_cifar10(cifar_folder):
    text = AUTHORS.replace("ip.json", f"ip.json\noffset = {free_offset(4)}")
    flags = ("-gf", "graph.txt", "-is", "3", "-ta", "2", "-tea", "2", "-ro", "0", "-ld", "run")
    result = skiptrain("launch", "-cf", write_ini(cifar_folder, text), *flags, cwd=cifar_folder)
    assert result.returncode == 0, result.stderr
    run = Run(cifar_folder / "run")
    assert run.finished
    assert [line["trained"] for line in run.rounds] == [4, 0, 0], "Γ = 1, 9"
    assert [line["round"] for line in run.evaluations] == [2, 3]
    assert {"test_acc_mean", "validation_acc_mean", "train_loss_mean", "consensus"} <= run.rounds[1].keys()
    assert (run.folder / "models.safetensors").exists()


LAZY = """
from torch import nn


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        from torchvision.ops import MLP
        self.layers = nn.Sequential(nn.Flatten(), MLP(3072, [10]))

    def forward(self, x):
        return self.layers(x)
"""


def test_a_model_may_import_torchvision_whenever_it_likes(tmp_path):
    (tmp_path / "lazy_model.py").write_text(LAZY)
    script = """
    from skiptrain_plugin.experiment.experiment import load
    for package, name, parameters in ("lazy_model", "Lazy", 30730), ("torchvision.models", "resnet18", 11689512):
        settings = [f"DATASET.model_package={package}", f"DATASET.model_class={name}"]
        assert load(dataset="synthetic", settings=settings).architecture.parameters == parameters, name
    """
    plugin = "import skiptrain_plugin.sharing\nfrom decentralizepy.datasets.CIFAR10 import CIFAR10\n"
    for text in (script.replace("\n    ", "\n"), plugin):
        result = subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parent.parent}"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('no such device\\nat all')", "cannot import broken_model: RuntimeError: no such device"),
        ("import sys; sys.exit(0)", "cannot import broken_model: SystemExit: 0"),
        ("1 / 0", "ZeroDivisionError"),
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
        ("class Net: pass", "Net is not a torch.nn.Module"),
        ("from torch import nn\nclass Net(nn.Module):\n    def __init__(self): 1 / 0", "ZeroDivisionError"),
        ("from torch import nn\nclass Nett(nn.Module): pass", "no class Net; did you mean 'Nett'?"),
        ("def Net(): return 5", "gives a int, not a torch.nn.Module"),
        ("Net = 5", "Net of broken_model is a int, not a class"),
    ],
)
def test_a_model_package_that_does_not_work_gets_one_sentence(tmp_path, monkeypatch, code, words):
    (tmp_path / "broken_model.py").write_text(code + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_model", raising=False)
    with pytest.raises(InputError) as refusal:
        load(dataset="synthetic", settings=["DATASET.model_package=broken_model", "DATASET.model_class=Net"])
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    monkeypatch.delitem(sys.modules, "broken_model", raising=False)


def test_a_class_of_torchvision_that_needs_arguments_gets_one_sentence():
    named = ("DATASET.model_package=torchvision.models", "--set", "DATASET.model_class=ResNet")
    refused(skiptrain("plan", "--dataset", "synthetic", "--set", *named), "ResNet() without arguments")


# The end of a run.


def conclude(deployment: Deployment, folder: Path, at: int) -> None:
    """Goes on with a run; its process is killed before its change number ``at`` to the directory, or exits with 7."""
    from skiptrain_plugin import launcher

    seen = 0

    def watch(event, arguments):
        nonlocal seen
        changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate") or (
            event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wa+")
        )
        if changes and str(arguments[0]).startswith(str(folder)) and ".lock" not in str(arguments[0]):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    settings = launcher.Launch(folder, folder / "weights", resume=True)
    os._exit(7 if launcher.launch(deployment, settings).failures == [] else 1)


def kill_at_every_change(config: Path, unconcluded: Path, out: Path) -> None:
    """Concludes copies of a run, each killed one change later than the one before, until one is not killed."""
    deployment = from_flags(Flags(config))
    check_classes(deployment)
    at, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        at += 1
        shutil.copytree(unconcluded, out / str(at))
        if (child := os.fork()) == 0:
            try:
                conclude(deployment, out / str(at), at)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 7, at


def record(folder: Path) -> dict[str, object]:
    """Everything of a record that does not say when it was made."""
    info = json.loads((folder / "run.json").read_text())
    for key in ("started", "resumed", "wall_seconds", "command"):
        info.pop(key, None)
    files = ["rounds.jsonl", "nodes.jsonl", "models.safetensors", "share.json", "config.ini"]
    files += [f"nodes/{uid}_results.json" for uid in range(2)]
    return {"info": info, "left": sorted(p.name for p in folder.iterdir() if p.is_dir())} | {
        name: (folder / name).read_bytes() for name in files
    }


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_launcher_killed_at_any_step_of_concluding_has_its_record_completed(tmp_path, monkeypatch):
    """The nodes run once; then concluding is killed before each of its changes to the directory, and taken up again."""
    from skiptrain_plugin import launcher
    from skiptrain_plugin.deployment.conclusion import Conclusion

    few = TINY | {"nodes": 2, "degree": 1, "checkpoint_every": 3}
    path = write_ini(tmp_path, tiny_ini("skiptrain", 4, **few))
    unconcluded, whole = tmp_path / "unconcluded", tmp_path / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(Conclusion, "steps", lambda self: [])
        launcher.launch(from_flags(Flags(path)), launcher.Launch(unconcluded, unconcluded / "weights"))
    assert not (unconcluded / "rounds.jsonl").exists()
    assert any((unconcluded / "checkpoints").iterdir())
    assert any((unconcluded / "snapshots").iterdir()) or any((unconcluded / "means").iterdir())
    shutil.copytree(unconcluded, whole)
    assert launcher.launch_local(load(config=path), whole, resume=True).finished
    expected = record(whole)
    assert "mean_model_test_acc" in Run(whole).rounds[-1]
    assert len(Run(whole).rounds) == 4
    assert expected["left"] == ["means", "nodes", "weights"]
    out = tmp_path / "killed"
    process = launcher._context().Process(target=kill_at_every_change, args=(path, unconcluded, out))
    process.start()
    process.join(400)
    assert process.exitcode == 0
    killed = sorted(out.iterdir())
    assert len(killed) > 20, "run.json, lines, models, results, share.json, checkpoints"
    for folder in killed:
        assert launcher.launch_local(load(config=path), folder, resume=True).finished
        assert record(folder) == expected, folder.name


def test_a_share_called_finished_too_early_is_completed(tmp_path):
    """As an earlier version left it: share.json says finished, the checkpoints are gone and there are no lines."""
    path, folder = write_ini(tmp_path, tiny_ini("dpsgd", 2, **TINY)), tmp_path / "run"
    assert launch_it(path, folder).exit_code == 0
    expected = record(folder)
    for name in ("rounds.jsonl", "nodes.jsonl", "models.safetensors"):
        (folder / name).unlink()
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(info | {"status": "running"}))
    assert launch_it(path, folder, "--resume").exit_code == 0
    assert record(folder) == expected


# Names, ports, and directories in which nothing ran.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("dataset_class = Synthetic", "dataset_class = Syntetic"), "did you mean 'Synthetic'?"),
        (("dataset_package = tests.f", "dataset_package = tests.ff"), "did you mean 'tests.framework_problems'?"),
        (("model_class = Conv", "model_class = Convv"), "did you mean 'Convolution'?"),
        (("lr = 0.1", "optimizer_class = SDG"), "did you mean 'SGD'?"),
        (("shuffle = True", "training_class = Trainning"), "did you mean 'Training'?"),
        (("shuffle = True", "loss_class = CrossEntropyLos"), "did you mean 'CrossEntropyLoss'?"),
        (("sharing_class = Skip", "sharing_class = Skipp"), "did you mean 'SkipTrainSharing'?"),
        (("[NODE]", "[COMMUNICATION]\ncomm_class = TPC\n[NODE]"), "did you mean 'TCP'?"),
        (("algorithm = skiptrain", "algorithm = skiptrian"), "did you mean 'skiptrain'?"),
    ],
)
def test_every_class_name_is_resolved_before_a_node_starts(tmp_path, change, words):
    assert change[0] in tiny_ini()
    result = launch_it(write_ini(tmp_path, tiny_ini().replace(*change)), tmp_path / "run")
    assert isinstance(result.exception, InputError), result.exception
    assert result.exception.exit_code == 2
    assert words in str(result.exception)
    assert list((tmp_path / "run").glob("*.log")) == []


def test_a_taken_port_is_named_and_the_directory_can_be_used_again(tmp_path):
    offset = free_offset(3)
    text = tiny_ini("dpsgd", 2, **TINY) + f"\n[COMMUNICATION]\noffset = {offset}\n"
    path, folder = write_ini(tmp_path, text), tmp_path / "run"
    with socket.create_server(("127.0.0.1", offset + 3)):
        result = launch_it(path, folder)
    assert isinstance(result.exception, InputError)
    assert f"node 1 cannot listen at tcp://127.0.0.1:{offset + 3}: Address already in use" in str(result.exception)
    assert "is free" in str(result.exception)
    assert list(folder.glob("*.log")) == []
    (tmp_path / "far.json").write_text('{"0": "192.0.2.7"}')
    write_ini(tmp_path, text + "addresses_filepath = far.json\n")
    assert "machine 0 of the address file" in str(launch_it(path, folder).exception)
    write_ini(tmp_path, text)
    assert launch_it(path, folder).exit_code == 0
    assert Run(folder).info["status"] == FINISHED


def test_a_directory_in_which_no_round_ran_can_be_used_again(tmp_path):
    good = tiny_ini("dpsgd", 2, **TINY)
    path, folder = write_ini(tmp_path, good.replace("lr = 0.1", "lr = 0.1\nmomentun = 0.9")), tmp_path / "run"
    assert "died: node" in str(launch_it(path, folder).exception)
    write_ini(tmp_path, good)
    assert launch_it(path, folder).exit_code == 0
    assert Run(folder).finished
    assert "lost_nodes" not in Run(folder).info
    assert "already holds a run" in str(launch_it(path, folder).exception)


# Values as the framework reads them; losses.


def test_lists_stay_text_for_the_frameworks_classes(tmp_path):
    jwins = "sharing_package = decentralizepy.sharing.JWINS.JWINS\nsharing_class = JWINS\nalpha_list = [0.1, 0.5, 1.0]"
    text = tiny_ini("dpsgd", 2, **TINY).replace(OWN_SHARING, jwins).replace("tests.tiny", "tests.framework_problems #")
    text = text.replace("tests.framework_problems #_models", "tests.framework_problems")
    path, folder = write_ini(tmp_path, text), tmp_path / "run"
    assert from_flags(Flags(path)).config["SHARING"]["alpha_list"] == "[0.1, 0.5, 1.0]"
    result = launch_it(path, folder)
    assert result.exit_code == 0, result.output
    assert len(Run(folder).rounds) == 2


def test_both_engines_record_the_mean_loss_over_samples(tmp_path):
    """80 training samples per node in minibatches of 32, 60 test samples in batches of 25: the last ones are short."""
    text = tiny_ini("dpsgd", 2, **TINY, train_evaluate_after=2).replace("batch_size = 8", "batch_size = 32")
    path = write_ini(tmp_path, text.replace("shards = 2", "shards = 2\ntest_batch_size = 25"))
    assert launch_it(path, tmp_path / "run").exit_code == 0
    wanted = load(config=path)
    simulation = Simulation(wanted, node_data(wanted, tiny_images()))
    try:
        assert simulation.run([])
        simulation.flush()
        test, train = simulation.evaluator.evaluate().test, simulation.evaluator.train_losses()
    finally:
        simulation.close()
    line = Run(tmp_path / "run").nodes[-1]
    assert line["test_loss"] == pytest.approx(list(test.loss), rel=1e-5)
    assert line["train_loss"] == pytest.approx(train, rel=1e-5)
    own = read_rounds(lines_path(tmp_path / "run", 1))[2]
    assert own["train_loss"] == line["train_loss"][1]
