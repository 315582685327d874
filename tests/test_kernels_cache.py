"""The cache of the compiled kernel: what is damaged is built again, what others could have written is not loaded."""

import os
import shutil
import stat
import subprocess
import sys
import time

import pytest

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.kernels import library, selection
from tests.test_kernels import needs_kernel

pytestmark = needs_kernel

COMPILER = """#!/bin/sh
case "$*" in *--version*) echo "quick 1"; exit;; esac
echo "$*" >> {log}
while [ "$1" != -o ]; do shift; done
cp {product} "$2"
"""
"""Stands for a compiler that takes no time: its product was made before."""


class Place:
    """A cache of one's own and a quick compiler."""

    def __init__(self, folder, product):
        self.cache, self.log, self.compiler = folder / "cache", folder / "log", folder / "quick-cc"
        self.makes(product)

    @property
    def folder(self):
        return self.cache / "skiptrain" / "kernels"

    @property
    def file(self):
        (found,) = self.folder.glob("*.so")
        return found

    @property
    def builds(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def makes(self, product):
        self.script(COMPILER.format(log=self.log, product=product))

    def script(self, text):
        self.compiler.write_text(text)
        self.compiler.chmod(0o700)

    def load(self, arguments=""):
        """What a new process, which may be killed by what it loads, says of the kernel; "ready" if it has it."""
        code = (
            "from skiptrain_plugin.kernels.library import *; found = load_library();"
            "print(found if isinstance(found, Unavailable) else 'ready' * bool(found.block_forward))"
        )
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "CC": f"{self.compiler} {arguments}"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (done.returncode, done.stderr)
        return done.stdout.strip()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, library._built()[0])


@pytest.fixture
def in_process(place, monkeypatch):
    """The same cache and compiler for this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.cache))
    monkeypatch.setenv("CC", str(place.compiler))
    library.load_library.cache_clear()
    selection.why_not.cache_clear()
    yield place
    library.load_library.cache_clear()
    selection.why_not.cache_clear()


def test_built_once_and_for_this_user_only(place):
    before = os.umask(0o002)
    try:
        assert [place.load(), place.load()] == ["ready", "ready"]
    finally:
        os.umask(before)
    assert len(place.builds) == 1
    for path in (place.cache, place.folder.parent, place.folder, place.file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def cut(file, digest):
    os.truncate(file, file.stat().st_size // 2)


def emptied(file, digest):
    os.truncate(file, 0)


def flipped(file, digest):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def without_digest(file, digest):
    digest.unlink()


def with_strange_digest(file, digest):
    digest.write_bytes(b"\xff\x00" * 40)


@pytest.mark.parametrize("damage", [cut, emptied, flipped, without_digest, with_strange_digest])
def test_what_is_damaged_is_built_again(place, damage):
    assert place.load() == "ready"
    damage(place.file, place.file.with_suffix(".sha256"))
    assert place.load() == "ready"
    assert len(place.builds) == 2
    assert place.load() == "ready"
    assert len(place.builds) == 2


@pytest.mark.parametrize("up", [0, 1, 2, 3], ids=["folder", "parent", "cache", "above the cache"])
@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_folder_that_others_can_write_is_not_trusted(place, up, mode):
    assert place.load() == "ready"
    open_to_others = (place.folder, *place.folder.parents)[up]
    os.chmod(open_to_others, mode)
    said = place.load()
    os.chmod(open_to_others, 0o700)
    assert said == f"the kernel in the cache is not used: {open_to_others} can be written by others (mode {mode:o})"


def test_file_that_others_can_write_is_not_trusted(place):
    assert place.load() == "ready"
    place.file.chmod(0o702)
    assert place.load() == f"the kernel in the cache is not used: {place.file} can be written by others (mode 702)"


def test_link_in_the_place_of_the_file_is_not_followed(place, tmp_path):
    assert place.load() == "ready"
    elsewhere = shutil.copy(place.file, tmp_path / "elsewhere.so")
    file = place.file
    file.unlink()
    file.symlink_to(elsewhere)
    assert place.load().startswith("the kernel cannot be built or loaded: ")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("up", [-1, 0, 2], ids=["file", "folder", "cache"])
def test_what_belongs_to_somebody_else_is_not_trusted(place, up):
    assert place.load() == "ready"
    given = place.file if up < 0 else (place.folder, *place.folder.parents)[up]
    os.chown(given, 12345, -1)
    said = place.load()
    assert said.startswith(f"the kernel in the cache is not used: {given} ")
    assert "this user" in said or "somebody else" in said


@pytest.mark.skipif(os.getuid() != 0, reason="only root's folders are good enough")
def test_sticky_folder_of_root_is_good_enough_above_only(place):
    assert place.load() == "ready"
    os.chmod(place.cache, 0o1777)
    assert place.load() == "ready"
    os.chmod(place.folder, 0o1777)
    assert "can be written by others (mode 1777)" in place.load()


def test_library_without_the_functions_is_a_sentence(place, tmp_path):
    source = tmp_path / "other.c"
    source.write_text("int block_supported(void) { return 1; }\n")
    subprocess.run([*library._compiler(), "-shared", "-fPIC", source, "-o", tmp_path / "other.so"], check=True)
    place.makes(tmp_path / "other.so")
    assert place.load() == f"{place.file} has not the kernel's functions"


def test_what_is_no_library_is_a_sentence(place):
    place.makes(place.compiler)
    assert place.load().startswith("the kernel cannot be built or loaded: ")


def test_compiler_that_makes_nothing_is_a_sentence(place):
    place.script("#!/bin/sh\nexit 0\n")
    assert place.load().startswith("the kernel cannot be built or loaded: ")


def test_arguments_of_the_compiler_are_used(place):
    assert place.load("-pthread -DNAME='two words'") == "ready"
    assert place.builds[0].startswith("-pthread -DNAME=two words -O3 ")
    assert place.load() == "ready"
    assert len(place.builds) == 2
    assert "cannot be read" in place.load("'")


@pytest.mark.parametrize("hanging", ["version", "build"])
def test_compiler_that_hangs_is_ended_with_all_it_started(in_process, monkeypatch, tmp_path, hanging):
    monkeypatch.setattr(library, "_VERSION_SECONDS", 1)
    monkeypatch.setattr(library, "_BUILD_SECONDS", 1)
    quick = 'case "$*" in *--version*) exit;; esac\n' if hanging == "build" else ""
    in_process.script(f"#!/bin/sh\n{quick}sleep 600 & echo $! > {tmp_path / 'pid'}; wait\n")
    start = time.monotonic()
    assert "did not finish in 1 s" in str(library.load_library())
    assert time.monotonic() - start < 20
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", (tmp_path / "pid").read_text().strip()], capture_output=True, text=True
    )
    assert state.stdout.strip()[:1] in ("", "Z")


def test_torch_computes_instead_unless_the_native_kernel_was_asked_for(in_process):
    in_process.folder.mkdir(parents=True)
    os.chmod(in_process.folder, 0o777)
    assert not selection.uses_native("auto")
    assert selection.describe("auto").startswith("torch (the kernel in the cache is not used: ")
    with pytest.raises(
        InputError, match=r"kernels = native: .* can be written by others \(mode 777\); allowed here: auto"
    ):
        selection.uses_native("native")
