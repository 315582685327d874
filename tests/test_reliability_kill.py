"""Faults injected into real runs: killed at any moment, a full disk, a second run, thousands of rounds."""

import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest

from skiptrain_plugin.engine.checkpoint import checkpoints
from skiptrain_plugin.engine.runner import run_experiment
from skiptrain_plugin.results.record import Run
from tests.problems import refused, skiptrain
from tests.test_engine import tiny
from tests.test_run import QUICK, same_record

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    ["skiptrain_plugin.cli.progress", "skiptrain_plugin.engine.runner", "tests.tiny_models"]
)
"""Children start with torch imported, so that a kill falls into the run and not into the imports."""

KILLED_RUN = ["run", *QUICK, "--algorithm", "skiptrain_constrained", "--set", "RUN.checkpoint_every=1"]
KILLED_RUN += ["--set", "RUN.test_after=5", "--set", "OPTIMIZER_PARAMS.momentum=0.5", "--set", "NODE.budget_horizon="]


def command(arguments, out):
    """The entry point of a child: the real program."""
    from skiptrain_plugin.cli import main

    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
        main([*map(str, arguments), "--out", str(out)])


def start(arguments, out):
    process = FORKSERVER.Process(target=command, args=(arguments, out))
    process.start()
    return process


def finish(arguments, out, limit=100):
    process = start(arguments, out)
    process.join(limit)
    assert process.exitcode == 0
    return Run(out / "skiptrain_constrained")


def kill_often(tmp_path, kills, rounds, seed):
    """Kills runs ``kills`` times at random moments, each time going on from what is on disk; all end with one record.

    A run that reaches its end between two kills is compared, and the kills go on in another one.
    """
    arguments = [*KILLED_RUN, "--set", f"RUN.rounds={rounds}"]
    began = time.monotonic()
    expected = finish(arguments, tmp_path / "expected")
    whole = time.monotonic() - began
    dice, outs, done = random.Random(seed), [tmp_path / "killed-0"], 0
    interrupted_writes = 0
    while done < kills:
        process = start([*arguments, "--resume"], outs[-1])
        process.join(dice.uniform(0.1, max(0.6, 2.5 * whole / kills)))
        if process.exitcode is not None:
            assert process.exitcode == 0
            outs.append(tmp_path / f"killed-{len(outs)}")
            continue
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        done += 1
        interrupted_writes += bool(list(outs[-1].glob("*/checkpoints/.round*")))
    for out in outs:
        same_record(finish([*arguments, "--resume"], out), expected)
    return interrupted_writes


def test_twenty_kills_at_random_moments_leave_no_trace(tmp_path):
    kill_often(tmp_path, 20, 150, 1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_kills(tmp_path):
    interrupted_writes = kill_often(tmp_path, 200, 1500, 2)
    assert interrupted_writes > 0


def nine_rounds():
    return tiny("RUN.rounds=9", "RUN.checkpoint_every=1", "OPTIMIZER_PARAMS.momentum=0.5")


def run_killed_at(name, folder):
    """A real run that is killed when the temporary file for ``name`` is written and not yet renamed."""
    real = os.fsync

    def fsync(descriptor):
        written = [(path.stat().st_ino, path.stat().st_dev) for path in folder.rglob(f".{name}.{os.getpid()}")]
        if (os.fstat(descriptor).st_ino, os.fstat(descriptor).st_dev) in written:
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)

    os.fsync = fsync
    experiment, data = nine_rounds()
    run_experiment(experiment, folder, data=data, resume=True)


def test_what_a_kill_in_the_middle_of_writing_left_is_removed_on_the_next_start(tmp_path):
    experiment, data = nine_rounds()
    expected = run_experiment(experiment, tmp_path / "expected", data=data)
    folder = tmp_path / "killed"
    for name in ("round-00000003.safetensors", "2_results.json"):
        process = FORKSERVER.Process(target=run_killed_at, args=(name, folder))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        (left,) = (path for path in folder.rglob(".*") if path.name != ".lock")
        assert left.name == f".{name}.{process.pid}"
        assert left.stat().st_size > 0
    same_record(run_experiment(experiment, folder, data=data, resume=True), expected)
    assert {path.name for path in folder.rglob(".*")} == {".lock"}


def limited(size):
    """Runs in the child before the program: no file may grow beyond ``size`` bytes, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [40_000, 2_000])
def test_full_disk_is_named_and_nothing_is_lost(tmp_path, size):
    arguments = [*KILLED_RUN, "--set", "RUN.rounds=40"]
    expected = finish(arguments, tmp_path / "expected")
    out = tmp_path / "out"
    full = subprocess.run(
        [sys.executable, "-m", "skiptrain_plugin", *arguments, "--out", out],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=limited(size),
    )
    assert full.returncode == 1, full.stderr
    assert "Traceback" not in full.stderr
    assert "can no longer be written" in full.stderr
    assert not list(out.glob("*/checkpoints/.*"))
    same_record(finish([*arguments, "--resume"], out), expected)


def test_algorithms_that_a_kill_kept_from_starting_are_not_forgotten(tmp_path):
    arguments = [*KILLED_RUN, "--algorithm", "skiptrain_constrained,dpsgd", "--set", "RUN.rounds=120"]
    process = start(arguments, tmp_path)
    limit = time.monotonic() + 60
    while not (tmp_path / "skiptrain_constrained" / "rounds.jsonl").exists():
        assert time.monotonic() < limit
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    finish(["run", "--resume"], tmp_path)
    assert Run(tmp_path / "dpsgd").finished


def test_directory_that_cannot_be_written():
    refused(skiptrain("run", *QUICK, "--out", "/proc/nothing/here"), "/proc/nothing/here", "cannot be written")


def test_second_run_on_the_same_directory_is_refused(tmp_path):
    arguments = [*KILLED_RUN, "--set", "RUN.rounds=100000"]
    process = start(arguments, tmp_path / "out")
    try:
        limit = time.monotonic() + 60
        while not (tmp_path / "out" / "skiptrain_constrained" / "rounds.jsonl").exists():
            assert time.monotonic() < limit
            time.sleep(0.05)
        refused(skiptrain(*arguments, "--resume", "--out", tmp_path / "out"), "in use by another run")
        assert process.exitcode is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def test_a_cut_checkpoint_and_a_cut_line_are_not_taken_as_whole(tmp_path):
    arguments = [*KILLED_RUN, "--set", "RUN.rounds=60"]
    expected = finish(arguments, tmp_path / "expected")
    out = tmp_path / "out"
    process = start(arguments, out)
    folder = out / "skiptrain_constrained"
    limit = time.monotonic() + 60
    while len(checkpoints(folder / "checkpoints")) < 2:
        assert time.monotonic() < limit
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    newest = checkpoints(folder / "checkpoints")[0]
    newest.write_bytes(newest.read_bytes()[:-1000])
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 9')
    same_record(finish([*arguments, "--resume"], out), expected)


class Watch:
    """Notes memory and time while a run goes on."""

    def __init__(self):
        self.memory, self.times = [], []

    def after_round(self, simulation, round):
        self.times.append(time.perf_counter())
        if round.number % 500 == 0:
            with open("/proc/self/statm") as file:
                self.memory.append(int(file.read().split()[1]) * resource.getpagesize())


def test_five_thousand_rounds_are_flat(tmp_path):
    experiment, data = tiny("RUN.rounds=5000", "RUN.nodes=4", "RUN.test_after=50", "RUN.checkpoint_every=250")
    watch = Watch()
    run = run_experiment(experiment, tmp_path / "a", data=data, progress=lambda simulation: [watch])
    assert run.finished
    assert max(watch.memory[2:]) - watch.memory[1] < 20 * 2**20, watch.memory
    early, late = (watch.times[b] - watch.times[a] for a, b in ((500, 1500), (3900, 4900)))
    assert late < 2 * early, (early, late)
    sizes = [len(line) for line in (run.folder / "rounds.jsonl").read_bytes().splitlines()]
    assert max(sizes) < 500
    assert len(sizes) == 5000
    assert len(list((run.folder / "checkpoints").iterdir())) == 2
    assert json.loads((run.folder / "run.json").read_text())["completed_rounds"] == 5000
