"""The plugin on the real DecentralizePy, on loopback: deaths, resuming, two machines, the framework's own classes."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq
from click.testing import CliRunner
from safetensors.torch import load_file

from skiptrain_plugin import framework
from skiptrain_plugin.cli.launch import launch as launch_command
from skiptrain_plugin.deployment.node_files import lines_path, read_rounds
from skiptrain_plugin.deployment.plan import Flags, from_flags
from skiptrain_plugin.deployment.ports import free_offset
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.results.record import FAILED, FINISHED, Run
from tests.framework_problems import tiny_ini
from tests.test_plugin_parity import FRAMEWORK_SHARING, OWN_SHARING

pytestmark = pytest.mark.skipif(not framework.installed(), reason=framework.MISSING)


@pytest.fixture
def launching():
    from skiptrain_plugin import launcher

    return launcher


def write_ini(folder: Path, text: str) -> Path:
    path = folder / "experiment.ini"
    path.write_text(text)
    return path


def node_pids(folder: Path) -> list[int]:
    """Processes of nodes whose log is in ``folder``, found by the files that they hold open."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            held = {os.readlink(link) for link in (place / "fd").iterdir()}
        except OSError:
            continue
        if any(name.startswith(f"{folder}/") and name.endswith("_rounds.jsonl") for name in held):
            found.append(int(place.name))
    return found


def pid_of(folder: Path, rank: int) -> int:
    for pid in node_pids(folder):
        held = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
        if str(lines_path(folder, rank)) in held:
            return pid
    raise AssertionError(f"no process of rank {rank}")


def after_rounds(folder: Path, rank: int, rounds: int, do) -> threading.Thread:
    """Calls ``do(pid)`` once the node of this rank has recorded ``rounds`` rounds."""

    def wait() -> None:
        path, end = lines_path(folder, rank), time.monotonic() + 60
        while time.monotonic() < end:
            if path.exists() and path.read_bytes().count(b'"action"') >= rounds:
                do(pid_of(folder, rank))
                return
            time.sleep(0.005)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("on_failure", ["stop", "continue"])
def test_a_killed_node_is_named_and_the_others_stop_or_go_on(launching, tmp_path, on_failure):
    path = write_ini(tmp_path, tiny_ini("dpsgd", 200, test_after=50))
    folder, said = tmp_path / "run", []
    killer = after_rounds(folder, 3, 5, lambda pid: os.kill(pid, signal.SIGKILL))
    settings = launching.Launch(folder, folder / "weights", on_failure=on_failure, report=said.append)
    start = time.monotonic()
    outcome = launching.launch(from_flags(Flags(path)), settings)
    killer.join(5)
    assert time.monotonic() - start < 60
    assert [failure.uid for failure in outcome.failures] == [3]
    assert "node 3 died in round" in said[-1] + said[0]
    assert "SIGKILL" in str(outcome.failures[0])
    assert node_pids(folder) == []
    run = Run(folder)
    assert run.info["lost_nodes"].keys() == {"3"}
    if on_failure == "stop":
        assert outcome.stopped
        assert run.info["status"] == FAILED
        assert 5 <= len(run.rounds) < 200
    else:
        assert not outcome.stopped
        assert run.info["status"] == FINISHED
        assert len(run.rounds) == 200
        assert run.evaluations[-1]["round"] == 200
        assert run.nodes[-1]["uids"] == [0, 1, 2, 4, 5, 6, 7]
        assert all(len(read_rounds(lines_path(folder, rank))) == 200 for rank in (0, 1, 2, 4, 5, 6, 7))


def test_a_stopped_node_costs_one_deadline_and_comes_back(launching, tmp_path):
    """SIGSTOP: the process lives but is silent; SIGCONT: it finds itself left behind and joins the others."""
    text = tiny_ini("dpsgd", 300, test_after=300).replace(OWN_SHARING, f"{OWN_SHARING}\npeer_deadline = 1")
    path, folder = write_ini(tmp_path, text), tmp_path / "run"

    def freeze(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(pid, signal.SIGCONT)

    freezer = after_rounds(folder, 2, 5, freeze)
    outcome = launching.launch(from_flags(Flags(path)), launching.Launch(folder, folder / "weights"))
    freezer.join(5)
    assert outcome.failures == []
    frozen = read_rounds(lines_path(folder, 2))
    assert max(frozen) == 300
    assert len(frozen) < 300, "the rounds it was away are not made up for"
    away = min(number for number in range(1, 301) if number not in frozen)
    neighbor = next(iter(from_flags(Flags(path)).topology.neighbors(2)))
    answers = [line["answered"] for _, line in sorted(read_rounds(lines_path(folder, neighbor)).items())]
    assert min(answers) <= 2
    assert answers[:3] == [3, 3, 3]
    assert answers[-3:] == [3, 3, 3], "taken in again"
    assert away > 5


def test_two_machines_with_keys_make_one_record(launching, tmp_path):
    from skiptrain_plugin.wire.keys import make_keys

    make_keys(tmp_path / "keys", [list(range(4)), list(range(4, 8))])
    (tmp_path / "ip.json").write_text(json.dumps({"0": "127.0.0.1", "1": "127.0.0.2"}))
    path = write_ini(
        tmp_path,
        tiny_ini("skiptrain_constrained", 12)
        + f"""
[COMMUNICATION]
comm_package = skiptrain_plugin.communication
comm_class = SecureTCP
keys = keys
addresses_filepath = ip.json
offset = {free_offset(8)}
""",
    )
    folders = [tmp_path / f"machine{machine}" for machine in range(2)]
    other = start_launcher(path, folders[1], "-ms", "2", "-ps", "4", "-mid", "1")
    here = from_flags(Flags(path, 0, 2, 4))
    assert launching.launch(here, launching.Launch(folders[0], folders[0] / "weights")).failures == []
    assert other.wait(60) == 0, other.stderr.read()
    other.stderr.close()
    run = launching.merge_shares(folders, tmp_path / "merged")
    assert run.finished
    assert len(run.rounds) == 12
    assert run.nodes[3]["uids"] == list(range(8))
    alone = launching.launch_local(load(config=path), tmp_path / "alone")
    assert [line["trained"] for line in run.nodes] == [line["trained"] for line in alone.nodes]
    assert run.evaluations[-1]["test_acc_mean"] == pytest.approx(alone.evaluations[-1]["test_acc_mean"], abs=1e-3)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_machine_that_is_lost_comes_back_from_its_checkpoints(launching, tmp_path):
    (tmp_path / "ip.json").write_text(json.dumps({"0": "127.0.0.1", "1": "127.0.0.2"}))
    text = tiny_ini("dpsgd", 3000, test_after=3000, checkpoint_every=20)
    text = text.replace(OWN_SHARING, f"{OWN_SHARING}\npeer_deadline = 2")
    text += f"\n[COMMUNICATION]\naddresses_filepath = ip.json\noffset = {free_offset(8)}\n"
    path, folders = write_ini(tmp_path, text), [tmp_path / f"machine{machine}" for machine in range(2)]
    second = ("-ms", "2", "-ps", "4", "-mid", "1")
    other = [start_launcher(path, folders[1], *second)]

    def replace_machine(pid: int) -> None:
        other[0].kill()
        other[0].wait(10)
        other.append(start_launcher(path, folders[1], *second, "--resume"))

    replacing = after_rounds(folders[1], 0, 50, replace_machine)
    here = from_flags(Flags(path, 0, 2, 4))
    assert launching.launch(here, launching.Launch(folders[0], folders[0] / "weights")).failures == []
    replacing.join(30)
    assert other[1].wait(60) == 0, other[1].stderr.read()
    for process in other:
        process.stderr.close()
    run = launching.merge_shares(folders, tmp_path / "merged")
    assert len(run.rounds) == 3000
    assert run.rounds[-1]["trained"] == 8, "everybody is there at the end"
    assert min(line["trained"] for line in run.rounds) <= 4, "and was not in between"
    answers = [line["answered"] for line in read_rounds(lines_path(folders[0], 0)).values()]
    assert answers[-3:] == [3, 3, 3]


@pytest.mark.parametrize("secure", [False, True])
def test_a_stranger_on_the_port_disturbs_nobody(launching, tmp_path, secure):
    offset = free_offset(8)
    communication = f"\n[COMMUNICATION]\noffset = {offset}\n"
    if secure:
        from skiptrain_plugin.wire.keys import make_keys

        make_keys(tmp_path / "keys", [list(range(8))])
        communication += "comm_package = skiptrain_plugin.communication\ncomm_class = SecureTCP\nkeys = keys\n"
    path, folder = write_ini(tmp_path, tiny_ini("dpsgd", 60, test_after=60) + communication), tmp_path / "run"

    def talk(pid: int) -> None:
        with socket.create_connection(("127.0.0.1", offset + 1), timeout=5) as raw:
            raw.sendall(os.urandom(5000))
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 500
            stranger.identity = b"2"
            stranger.connect(f"tcp://127.0.0.1:{offset + 3}")
            for content in (b"", b"no pickle", pickle.dumps({"CHANNEL": "DPSGD"}), pickle.dumps(7)):
                stranger.send(content)

    stranger = after_rounds(folder, 0, 5, talk)
    outcome = launching.launch(from_flags(Flags(path)), launching.Launch(folder, folder / "weights"))
    stranger.join(10)
    assert outcome.failures == [], outcome.failures[0]
    for rank in range(8):
        lines = read_rounds(lines_path(folder, rank))
        assert [line["answered"] for line in lines.values()] == [3] * 60


_LAUNCH = """
if __name__ == "__main__":
    import sys
    from skiptrain_plugin.cli import cli, main
    from skiptrain_plugin.cli.launch import launch
    cli.add_command(launch)
    main(["launch", *sys.argv[1:]])
"""


def start_launcher(path: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _LAUNCH, "-cf", str(path), "-ld", str(folder), *more]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def gone_within(folder: Path, pids: list[int], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not set(pids) & set(node_pids(folder)):
            return True
        time.sleep(0.05)
    return False


def test_a_killed_launcher_leaves_nobody_behind_and_its_run_goes_on(launching, tmp_path):
    path = write_ini(tmp_path, tiny_ini("greedy", 200, test_after=100, checkpoint_every=10))
    folder = tmp_path / "run"
    process = start_launcher(path, folder)
    after_rounds(folder, 0, 25, lambda pid: None).join(60)
    pids = node_pids(folder)
    assert len(pids) == 8
    process.kill()
    process.wait(10)
    process.stderr.close()
    assert gone_within(folder, pids, 10)
    done = len(read_rounds(lines_path(folder, 7)))
    after_rounds(folder, 7, done + 20, lambda pid: os.kill(os.getpid(), signal.SIGINT))
    result = CliRunner().invoke(launch_command, ["-cf", str(path), "-ld", str(folder), "--resume"])
    assert result.exit_code == 130, result.output
    assert "--resume" in result.output
    assert node_pids(folder) == []
    experiment = load(config=path)
    resumed = launching.launch_local(experiment, folder, resume=True)
    assert resumed.finished
    assert len(resumed.info["resumed"]) == 2
    whole = launching.launch_local(experiment, tmp_path / "whole")
    assert [line["trained"] for line in resumed.nodes] == [line["trained"] for line in whole.nodes]
    assert len(resumed.rounds) == 200
    one, two = (load_file(run.folder / "models.safetensors") for run in (resumed, whole))
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_a_second_launch_on_a_directory_is_refused(launching, tmp_path):
    from skiptrain_plugin.errors import InputError

    experiment = load(config=write_ini(tmp_path, tiny_ini(rounds=2)))
    launching.launch_local(experiment, tmp_path / "run")
    with pytest.raises(InputError, match="--resume"):
        launching.launch_local(experiment, tmp_path / "run")
    assert launching.launch_local(experiment, tmp_path / "run", resume=True).finished
    other = load(config=tmp_path / "experiment.ini", algorithm="dpsgd")
    with pytest.raises(InputError, match=r"NODE\.algorithm"):
        launching.launch_local(other, tmp_path / "run", resume=True)


def test_a_node_that_fails_says_why_in_its_last_words(launching, tmp_path):
    path = write_ini(tmp_path, tiny_ini().replace("lr = 0.1", "lr = 0.1\nmomentun = 0.9"))
    outcome = launching.launch(from_flags(Flags(path)), launching.Launch(tmp_path / "run", tmp_path / "weights"))
    assert "momentun" in str(outcome.failures[0])
    assert outcome.failures[0].exitcode == 1


SHARINGS = {
    "plain": "sharing_package = decentralizepy.sharing.PlainAverageSharing\nsharing_class = PlainAverageSharing",
    "compressed": OWN_SHARING + "\ncompress = True\ncompression_package = decentralizepy.compression.EliasFpzip\n"
    "compression_class = EliasFpzip",
    "framework": FRAMEWORK_SHARING,
    "jwins": "sharing_package = decentralizepy.sharing.JWINS.JWINS\nsharing_class = JWINS",
}


@pytest.mark.parametrize("name", SHARINGS)
def test_sharing_classes_of_the_framework(launching, tmp_path, name):
    text = tiny_ini("skiptrain", 6, train_evaluate_after=3).replace(OWN_SHARING, SHARINGS[name])
    text = text.replace("tests.tiny_models", "tests.framework_problems")
    path = write_ini(tmp_path, text)
    outcome = launching.launch(from_flags(Flags(path)), launching.Launch(tmp_path / "run", tmp_path / "weights"))
    assert outcome.failures == [], outcome.failures[0]
    run = Run(tmp_path / "run")
    assert [line["trained"] for line in run.rounds] == [8, 8, 0, 0, 8, 8]
    assert run.evaluations[-1]["test_acc_mean"] > 25
    assert "train_loss_mean" in run.rounds[2]
    if name in ("compressed", "framework"):
        plain = launching.launch_local(load(config=write_ini(tmp_path, tiny_ini("skiptrain", 6))), tmp_path / "own")
        assert run.evaluations[-1]["test_acc_mean"] == pytest.approx(plain.evaluations[-1]["test_acc_mean"], abs=2)


def test_the_driver_of_the_framework_runs_the_node_by_its_class_name(launching, tmp_path):
    """As the framework's own eval/testing.py does it: LocalConfig, Linear mapping, one process a node, no launcher."""
    from decentralizepy.graphs.Graph import Graph
    from decentralizepy.mappings.Linear import Linear
    from localconfig import LocalConfig

    from skiptrain_plugin.node import SkipTrainNode

    (tmp_path / "ip.json").write_text('{"0": "localhost"}')
    communication = f"""
[COMMUNICATION]
comm_package = decentralizepy.communication.TCP
comm_class = TCP
addresses_filepath = {tmp_path / "ip.json"}
offset = {free_offset(4)}
"""
    text = (
        tiny_ini("skiptrain", 4)
        .split("[RUN]")[0]
        .replace("lr = 0.1", "optimizer_package = torch.optim\noptimizer_class = SGD\nlr = 0.1")
    )
    text = text.replace(
        "[TRAIN_PARAMS]",
        "[TRAIN_PARAMS]\ntraining_package = decentralizepy.training.Training\ntraining_class = Training\n"
        "full_epochs = False\nloss_package = torch.nn\nloss_class = CrossEntropyLoss",
    )
    config = LocalConfig(str(write_ini(tmp_path, text + communication)))
    sections = {section: dict(config.items(section)) for section in config}
    graph = Graph(4)
    for one, other in ((0, 1), (1, 2), (2, 3), (3, 0)):
        graph.__insert_edge__(one, other)
    context = launching._context()
    processes = [
        context.Process(
            target=SkipTrainNode,
            args=(r, 0, Linear(1, 4), graph, sections, 4, str(tmp_path), str(tmp_path), logging.INFO, 2, 2, 0),
        )
        for r in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    results = json.loads((tmp_path / "2_results.json").read_text())
    assert list(results["action"].values()) == ["p", "p", "np", "np"]
    assert list(results["test_acc"]) == list(results["train_loss"]) == ["2", "4"]
    assert results["total_bytes"]["4"] > results["total_data_per_n"]["4"] > 0
    assert (tmp_path / "3_weight_2.safetensors").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_eight_nodes_for_a_hundred_rounds_grow_neither_files_nor_memory(launching, tmp_path):
    path = write_ini(tmp_path, tiny_ini("dpsgd", 1000, test_after=5, checkpoint_every=10))
    folder, seen = tmp_path / "run", []

    def look(pid: int) -> None:
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        seen.append((files, memory))

    threads = [after_rounds(folder, 1, rounds, look) for rounds in (100, 500, 900)]
    outcome = launching.launch(from_flags(Flags(path)), launching.Launch(folder, folder / "weights"))
    for thread in threads:
        thread.join(5)
    assert outcome.failures == []
    files, memory = zip(*sorted(seen, key=lambda pair: seen.index(pair)), strict=True)
    assert max(files) - min(files) <= 2
    assert np.ptp(memory) < 10 * 2**20
