"""One writer a folder and one a record: what a killed workflow leaves behind, and jobs that outlive it."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from turnscale.errors import TurnscaleError
from turnscale.files import lock

JOB = re.compile(rb"(?:.*/)?turnscale (?:job (?!unlock)(?:tabular )?([a-z-]+)|(audit))(?: .*)?", re.DOTALL)
LOCKED = {b"base", b"critic", b"train", b"train-pack", b"evaluate", b"block"}
"""Jobs that hold the lock of their record (`only_writer`); a new workflow need not wait for them to begin."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep a second workflow command out of a folder while this one works; the lock ends with the process.

    Raises:
        TurnscaleError: another one is at work there.
        StorageError: the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(folder / ".snakemake" / "turnscale.lock"))
        except BlockingIOError as holder:
            raise TurnscaleError(
                f"another 'turnscale reproduce' (process {holder}) is at work in this folder.",
                remedy="wait for it, or stop it with Ctrl-C in its terminal.",
            ) from None
        yield


def release_stale_lock(folder: Path = Path(), processes: Path = Path("/proc")) -> int:
    """Remove Snakemake's lock files if no Snakemake is at work in the folder.

    Jobs that outlived their Snakemake are never stopped. Short ones (tables, figures) are waited for here.
    Long ones go on beside the new workflow: its own job for the same record waits for theirs and keeps what it
    made, so nothing is computed twice and the other cores are not idle.

    Args:
        folder: the project folder.
        processes: the kernel's process table.

    Returns:
        Number of lock files removed; 0 if the folder is not locked.

    Raises:
        TurnscaleError: a Snakemake is at work, or one whose folder cannot be seen, or there is no process table.
    """
    locks = sorted((folder / ".snakemake" / "locks").glob("*.lock"))
    if not locks:
        return 0
    by_hand = "if you are sure that none is running, run 'snakemake --unlock'."
    if not (processes / "self").exists():
        raise TurnscaleError("the folder is locked by a Snakemake that may be running.", remedy=by_hand)
    for pid, working in _processes(processes, _is_snakemake):
        if working is None:
            raise TurnscaleError(
                f"the folder is locked, and process {pid} may be the Snakemake that holds it.", remedy=by_hand
            )
        if working == folder.resolve():
            raise TurnscaleError(
                f"a Snakemake (process {pid}) is at work in this folder.", remedy="wait for it, or stop it."
            )
    _await_outlived(folder.resolve(), processes)
    for left in locks:
        left.unlink()
    return len(locks)


def _await_outlived(folder: Path, processes: Path) -> None:
    def outlived(wanted: Callable[[list[bytes]], bool]) -> str:
        return ", ".join(pid for pid, working in _processes(processes, wanted) if working == folder)

    told = ""
    while short := outlived(lambda words: _job(words) is not None and _job(words) not in LOCKED):
        if short != told:
            print(f"Waiting for short jobs of a killed workflow (processes {short}).", file=sys.stderr)
            told = short
        time.sleep(0.5)
    if long := outlived(lambda words: _job(words) in LOCKED):
        print(
            f"Jobs of a killed workflow are still at work (processes {long}). They go on; the new workflow "
            f"takes over what they make. To stop them: kill {long.replace(',', '')}",
            file=sys.stderr,
        )


@contextmanager
def only_writer(record: Path) -> Iterator[bool]:
    """Hold the lock of a job's record; wait for the process that holds it, however long that works.

    The holder is a job that outlived its workflow, here or on a machine that shares the folder. The kernel frees
    the lock when its process ends in whatever way.

    Args:
        record: the file that the job writes last.

    Yields:
        Whether the holder made the record meanwhile, so that nothing is left to do.
    """
    folder = record.parent.parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{record.parent.name}-{record.stem}.lock").open("a+") as handle:
        waited = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            print(f"waiting for process {holder}, which is making {record}", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
            waited = True
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        made = waited and record.exists()
        if made:
            print(f"{record} was made meanwhile", file=sys.stderr, flush=True)
        yield made


def stop_on_sigterm() -> None:
    """Have SIGTERM stop this Snakemake as Ctrl-C does, and its jobs with it: trainings write a checkpoint first.

    Left alone, Snakemake would wait until its jobs end by themselves, which is longer than any grace period.
    """
    import psutil

    asked: set[int] = set()

    def ask() -> None:
        for child in psutil.Process().children(recursive=True):
            try:
                words = [os.fsencode(word) for word in child.cmdline()]
                if words and child.pid not in asked and _job(words) is not None:
                    child.send_signal(signal.SIGTERM)
                    asked.add(child.pid)
            except psutil.Error:
                continue  # it ended meanwhile

    def ask_latecomers() -> None:
        while True:  # jobs that a shell was just about to start
            time.sleep(0.5)
            ask()

    def stop(signum: int, frame: object) -> None:
        ask()
        threading.Thread(target=ask_latecomers, daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def _job(words: list[bytes]) -> bytes | None:
    """Name of the job that a process is; None for anything else, such as a shell or ``timeout`` around one."""
    python = words[0].rpartition(b"/")[2].startswith(b"python")
    found = JOB.fullmatch(b" ".join(words[1:5] if python else words[:4]))
    return None if found is None else found[1] or found[2]


def _is_snakemake(words: list[bytes]) -> bool:
    return any(word.rpartition(b"/")[2] == b"snakemake" for word in words[:4])


def _processes(processes: Path, wanted: Callable[[list[bytes]], bool]) -> list[tuple[str, Path | None]]:
    """Process id and working folder of every other process wanted; None for a folder that may not be read."""
    found: list[tuple[str, Path | None]] = []
    for entry in processes.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if not wanted(words):
                continue
            found.append((entry.name, (entry / "cwd").readlink().resolve()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        except PermissionError:
            found.append((entry.name, None))
    return found
