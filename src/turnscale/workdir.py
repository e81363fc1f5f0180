"""The lock that a killed Snakemake leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from turnscale.errors import TurnscaleError


def release_stale_lock(folder: Path = Path(), processes: Path = Path("/proc")) -> int:
    """Remove Snakemake's lock files if no Snakemake is at work in the folder.

    Args:
        folder: the project folder.
        processes: the kernel's process table.

    Returns:
        Number of lock files removed; 0 if the folder is not locked.

    Raises:
        TurnscaleError: a Snakemake is at work, or one whose folder cannot be seen, or a job that outlived its
            Snakemake, or there is no process table.
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
    outlived = [pid for pid, working in _processes(processes, _is_job) if working == folder.resolve()]
    if outlived:
        raise TurnscaleError(
            f"jobs of a killed workflow are still at work (processes {', '.join(outlived)}).",
            remedy=f"wait for them, or run 'kill {' '.join(outlived)}': a training writes a checkpoint first.",
        )
    for lock in locks:
        lock.unlink()
    return len(locks)


def _is_snakemake(words: list[bytes]) -> bool:
    return any(word.rpartition(b"/")[2] == b"snakemake" for word in words[:4])


def _is_job(words: list[bytes]) -> bool:
    pairs = pairwise(words[:5])
    return any(word.rpartition(b"/")[2] == b"turnscale" and after == b"job" for word, after in pairs)


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
