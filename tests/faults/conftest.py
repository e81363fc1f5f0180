"""Real faults: a small disk that fills up or turns read-only, a limit on the size of files, and damaged bytes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.track.made import make_project
from tests.train.conftest import setting, store  # noqa: F401 - fixtures
from turnscale.study import Plan, resolve
from turnscale.track import retry

KIB = 1024


class Disk:
    """A file system of its own in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, leave: int = 0) -> None:
        """Take all space but ``leave`` bytes."""
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        with (self.path / "ballast").open("wb") as file:
            try:
                file.write(b"\0" * max(0, free - leave))
                file.flush()
            except OSError:
                pass  # full is what was asked for

    def free(self) -> None:
        """Give the space back."""
        (self.path / "ballast").unlink()

    def writable(self, yes: bool) -> None:
        """Mount it anew, read-only or not."""
        subprocess.run(["mount", "-o", f"remount,{'rw' if yes else 'ro'}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of 8 MiB; skipped where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here ({error})")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here ({done.stderr.strip()})")
    yield Disk(place)
    subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes meanwhile: the fault that needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with made-up runs in a real store."""
    return make_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Plan:
    """A copy of it."""
    shutil.copytree(made, tmp_path / "copy")
    return resolve("mpo", "tiny", root=tmp_path / "copy")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is tried once more without waiting."""
    monkeypatch.setattr(retry, "PAUSES", (0.0,))


def truncated(path: Path) -> None:
    """Keep the first half."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flipped(path: Path) -> None:
    """Flip one bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGES: dict[str, Callable[[Path], None]] = {"truncated": truncated, "flipped": flipped}
