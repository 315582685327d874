"""The installed wheel, the set-up scripts, and the rules the project sets itself."""

import ast
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
SCRIPTS = PROJECT / "run_scripts"


def test_installed_wheel_finds_templates_and_traces(tmp_path):
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".venv", ".git", "runs", "build", "*.egg-info", ".*_cache", "__pycache__")
    shutil.copytree(PROJECT, source, ignore=ignored)
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, timeout=100)
    (wheel,) = tmp_path.glob("skiptrain_plugin-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "skiptrain_plugin/py.typed" in names
    assert not [name for name in names if name.startswith("tests/")]
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import skiptrain_plugin.resources as r, skiptrain_plugin as s\n"
        "from skiptrain_plugin.experiment.experiment import load\n"
        "from skiptrain_plugin.experiment.plan import make_plan\n"
        "print(s.__file__, r.template('cifar.ini'))\n"
        "print(round(make_plan(load(dataset='cifar', scale='paper')).training_energy_wh, 2))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    files, energy = done.stdout.strip().splitlines()
    assert all(path.startswith(str(site)) for path in files.split())
    assert energy == "755.02"


@pytest.fixture
def bare_project(tmp_path):
    """A checkout with the scripts only, and a PATH with nothing but what the scripts themselves call."""
    shutil.copytree(SCRIPTS, tmp_path / "project" / "run_scripts")
    shutil.copy(PROJECT / "setup.py", tmp_path / "project")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "basename", "dirname", "cat", "env"):
        (tools / tool).symlink_to(shutil.which(tool))

    def run(script: str, *arguments: str, python: str | None = None):
        if python is not None:
            fake = tools / "python3"
            fake.write_text(f"#!/bin/bash\n{python}\n")
            fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        return subprocess.run(
            [tools / "bash", tmp_path / "project" / "run_scripts" / script, *arguments],
            env={"PATH": str(tools)},
            capture_output=True,
            text=True,
            timeout=30,
        )

    return run


def test_no_python_or_an_old_one_is_one_clear_sentence(bare_project):
    for python in (None, "exit 1"):
        done = bare_project("run_tests.sh", python=python)
        assert done.returncode == 1
        assert done.stderr.strip() == (
            "run_tests.sh: Python 3.10 or newer is needed and was not found;"
            " install it, or name it in SKIPTRAIN_PYTHON."
        )


def test_python_without_venv_is_one_clear_sentence(bare_project):
    done = bare_project("run_skiptrain.sh", "cifar", "6", python='[ "$2" != venv ] && echo Python 3.11.0')
    assert done.returncode == 1
    assert "-m venv' failed; install Python's venv and pip modules" in done.stderr.splitlines()[-1]


def test_script_without_arguments_says_how_to_call_it(bare_project):
    done = bare_project("run_skiptrain.sh")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: run_skiptrain.sh DATASET DEGREE")


def test_algorithm_and_energy_import_neither_torch_nor_the_framework_nor_touch_files():
    for path in [
        *(PROJECT / "skiptrain_plugin/algorithm").glob("*.py"),
        *(PROJECT / "skiptrain_plugin/energy").glob("*.py"),
    ]:
        tree = ast.parse(path.read_text())
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        assert not imported & {"torch", "decentralizepy", "pathlib", "os"}, path
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "open"], path


def test_modules_stay_readable():
    for path in (PROJECT / "skiptrain_plugin").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path
