"""The cache: whole or absent, repaired when broken, one clear sentence when the disk will not have it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from skiptrain_plugin.data import store
from skiptrain_plugin.errors import RunError
from tests.data_problems import cache, leftovers, python, start_python

__all__ = ["cache"]


def numbers(staging: Path) -> dict[str, str]:
    (staging / "scratch").mkdir()
    (staging / "scratch" / "rest").write_text("not kept")
    store.save(staging, "a", np.arange(6, dtype=np.int32).reshape(2, 3))
    store.save_rows(staging, "b", np.uint8, (3, 2), iter([np.ones((1, 2)), np.zeros((2, 2))]))
    return {"source": "counted"}


def never(staging: Path) -> dict[str, str]:
    raise AssertionError("built a second time")


def test_written_once_then_mapped_read_only(cache: Path) -> None:
    entry = store.obtain("numbers", numbers)
    again = store.obtain("numbers", never)
    for opened in (entry, again):
        assert opened.arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert opened.arrays["b"].tolist() == [[1, 1], [0, 0], [0, 0]]
        assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in opened.arrays.values())
    assert again.facts == {"source": "counted"}
    assert entry.digest == again.digest
    assert len(entry.digest) == 64
    assert sorted(path.name for path in (cache / "numbers").iterdir()) == ["a.npy", "b.npy", "meta.json"]
    assert leftovers(cache) == ["numbers"]
    assert store.verify(cache / "numbers") == []


def test_the_users_cache_is_looked_in_too(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIPTRAIN_DATA")
    assert store.root() == store.user_cache()
    store.obtain("numbers", numbers)
    monkeypatch.setenv("SKIPTRAIN_DATA", str(cache))
    assert store.obtain("numbers", never).folder.parent == store.user_cache()


def cut(folder: Path) -> None:
    os.truncate(folder / "a.npy", 100)


def lose_array(folder: Path) -> None:
    (folder / "b.npy").unlink()


def lose_meta(folder: Path) -> None:
    (folder / "meta.json").unlink()


def spoil_meta(folder: Path) -> None:
    (folder / "meta.json").write_text('{"format": 1, "arrays": [')


def swap_type(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    meta["arrays"]["a"]["dtype"] = "<f4"
    (folder / "meta.json").write_text(json.dumps(meta))


def from_the_future(folder: Path) -> None:
    (folder / "meta.json").write_text('{"format": 99}')


def not_a_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (cut, "a.npy has 100 bytes"),
        (lose_array, "b.npy is missing"),
        (lose_meta, "meta.json is missing"),
        (spoil_meta, "unreadable"),
        (swap_type, "a.npy is <i4"),
        (from_the_future, "format 99"),
        (not_a_folder, "unreadable"),
    ],
)
def test_broken_entry_is_named_and_rebuilt(cache: Path, damage, named: str, caplog: pytest.LogCaptureFixture) -> None:
    digest = store.obtain("numbers", numbers).digest
    damage(cache / "numbers")
    assert named in store.verify(cache / "numbers")[0]
    assert store.obtain("numbers", numbers).digest == digest
    assert named in caplog.text
    assert str(cache / "numbers") in caplog.text
    assert leftovers(cache) == ["numbers"]


def test_flipped_bit_is_found_by_verify(cache: Path) -> None:
    store.obtain("numbers", numbers)
    path = cache / "numbers" / "a.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert "a.npy has sha256" in store.verify(cache / "numbers")[0]


def test_failed_build_leaves_nothing(cache: Path) -> None:
    def fails(staging: Path) -> dict[str, str]:
        numbers(staging)
        raise RunError("the source broke off")

    with pytest.raises(RunError, match="broke off"):
        store.obtain("numbers", fails)
    assert leftovers(cache) == []
    with pytest.raises(ValueError, match="2 rows written, 5 announced"):
        store.obtain("numbers", lambda s: store.save_rows(s, "a", np.uint8, (5,), [np.zeros(2)]) or {})
    assert leftovers(cache) == []


def test_remains_of_a_killed_process_are_cleared(cache: Path) -> None:
    (cache / ".numbers.abc").mkdir(parents=True)
    (cache / ".numbers.abc" / "a.npy").write_bytes(b"half")
    store.obtain("numbers", numbers)
    assert leftovers(cache) == ["numbers"]


def test_full_disk_is_one_sentence_and_leaves_nothing(cache: Path) -> None:
    code = """
        import resource, sys
        from skiptrain_plugin.data import load
        from skiptrain_plugin.errors import RunError
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            load("synthetic", seed=0)
        except RunError as error:
            print(error)
        else:
            sys.exit("wrote more than it may")
    """
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert "no room to write" in result.stdout
    assert "SKIPTRAIN_DATA" in result.stdout
    assert len(result.stdout.strip().splitlines()) == 1
    assert leftovers(cache) == []


def test_read_only_cache_is_one_sentence() -> None:
    """In a process of its own, which becomes an ordinary user first where it may."""
    code = """
        import os, sys
        import numpy
        from skiptrain_plugin.data import store
        from skiptrain_plugin.errors import RunError
        if os.geteuid() == 0:
            os.setuid(65534)
        if os.access(os.environ["SKIPTRAIN_DATA"], os.W_OK):
            sys.exit(77)
        try:
            store.obtain("numbers", None)
        except RunError as error:
            print(error)
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        result = python(code, SKIPTRAIN_DATA=folder, XDG_CACHE_HOME=f"{folder}/none")
        if result.returncode == 77:
            pytest.skip("this user may write to read-only directories")
        assert result.stdout.startswith(f"cannot write {folder}/numbers: Permission denied; point SKIPTRAIN_DATA")
        assert len(result.stdout.splitlines()) == 1
        assert list(Path(folder).iterdir()) == []


def test_cache_that_is_a_file_is_one_sentence(cache: Path) -> None:
    cache.write_text("in the way")
    with pytest.raises(RunError, match=r"cannot write .*; point SKIPTRAIN_DATA"):
        store.obtain("numbers", numbers)


def test_two_processes_at_once_build_it_once(cache: Path) -> None:
    code = """
        import logging, time
        import numpy as np
        from skiptrain_plugin.data import store
        logging.basicConfig(level="WARNING")
        def build(staging):
            print("built", flush=True)
            time.sleep(1.0)
            store.save(staging, "a", np.arange(10))
            return {}
        print(store.obtain("slow", build).digest)
    """
    both = [start_python(code) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    said = [out.split() for out, _ in results]
    assert sum("built" in words for words in said) == 1
    assert said[0][-1] == said[1][-1]
    assert "waiting for another process" in results[0][1] + results[1][1]
    assert leftovers(cache) == ["slow"]


def test_two_processes_draw_the_same_glyphs(cache: Path) -> None:
    code = """
        from skiptrain_plugin.data import load
        print(load("glyphs", nodes=16, seed=5).digest)
    """
    both = [start_python(code) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert results[0][0] == results[1][0]
    assert leftovers(cache) == ["glyphs-v1-16-5"]


def test_killed_while_writing_then_built_anew(cache: Path) -> None:
    code = """
        import time
        import numpy as np
        from skiptrain_plugin.data import store
        def build(staging):
            store.save(staging, "a", np.arange(10))
            print("half", flush=True)
            time.sleep(60)
            return {}
        store.obtain("numbers", build)
    """
    process = start_python(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.kill()
    process.communicate()
    start = time.monotonic()
    store.obtain("numbers", numbers)
    assert time.monotonic() - start < 10
    assert leftovers(cache) == ["numbers"]
