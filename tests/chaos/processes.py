"""The processes that a campaign started, found by a mark in their environment, and never any other."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "TURNSCALE_CHAOS"
TICKS = os.sysconf("SC_CLK_TCK")
JOBS = {"train": "trainer", "train-pack": "trainer", "evaluate": "evaluator"}


@dataclass(frozen=True)
class Seen:
    """A living process: what it is, and how long it has worked.

    Attributes:
        kind: ``trainer``, ``evaluator``, ``snakemake``, ``reproduce``, ``server`` or ``other``.
        started: ticks since the machine started; with ``pid`` it names a process for ever.
        cpu: seconds of processor time so far.
        state: the kernel's letter, e.g. T for stopped.
    """

    pid: int
    started: int
    kind: str
    words: tuple[str, ...]
    cpu: float
    state: str

    def option(self, name: str) -> str:
        """Value of a command-line option, "" if it is not there."""
        return self.words[self.words.index(name) + 1] if name in self.words else ""

    @property
    def since(self) -> float:
        """When it started, in seconds since 1970."""
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + self.started / TICKS

    @property
    def record(self) -> str:
        """The record that a job makes, relative to its folder; "" for other processes."""
        return self.option("--out")


class Family:
    """Every process whose environment holds the campaign's mark."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._ours: dict[tuple[int, int], bool] = {}

    def living(self) -> list[Seen]:
        """The marked processes that are not zombies."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                seen = self._look(entry)
                if seen is not None:
                    found.append(seen)
        return found

    def _look(self, entry: Path) -> Seen | None:
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            key = int(entry.name), int(fields[19])
            if key not in self._ours:
                self._ours[key] = self._mark in (entry / "environ").read_bytes().split(b"\0")
            if not self._ours[key] or fields[0] in "ZX":
                return None
            words = tuple(os.fsdecode(word) for word in (entry / "cmdline").read_bytes().split(b"\0") if word)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None  # it ended meanwhile, or is not ours to look at
        return Seen(*key, kind_of(words), words, (int(fields[11]) + int(fields[12])) / TICKS, fields[0])

    def kill(self, seen: Seen) -> bool:
        """Stop a process, so that it is proved alive, then SIGKILL it. Whether it was alive and is gone."""
        try:
            handle = os.pidfd_open(seen.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.freeze(seen):
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return bool(select.select([handle], [], [], 60)[0])
        finally:
            os.close(handle)

    def freeze(self, seen: Seen) -> bool:
        """SIGSTOP a process and wait until it stands still. False if it ended before."""
        entry = Path("/proc") / str(seen.pid)
        deadline = time.monotonic() + 10
        sent = False
        while time.monotonic() < deadline:
            now = self._look(entry)
            if now is None or now.started != seen.started:
                return False
            if sent and now.state == "T":
                return True
            if not sent:
                os.kill(seen.pid, signal.SIGSTOP)
                sent = True
            time.sleep(0.01)
        return False

    def end(self) -> int:
        """SIGKILL whatever is left. How many there were."""
        count = 0
        while left := self.living():
            for seen in left:
                try:
                    os.kill(seen.pid, signal.SIGKILL)
                    count += 1
                except ProcessLookupError:
                    continue
            time.sleep(0.1)
        return count


def kind_of(words: tuple[str, ...]) -> str:
    """What a command line is."""
    names = [word.rpartition("/")[2] for word in words[:5]]
    if not names or names[0] in ("sh", "bash", "dash"):
        return "other"
    if "snakemake" in names:
        return "snakemake"
    if "turnscale" in names:
        after = names[names.index("turnscale") + 1 :]
        if after[:1] == ["reproduce"]:
            return "reproduce"
        if after[:1] == ["job"]:
            return JOBS.get(after[1], "other") if len(after) > 1 else "other"
    if "mlflow" in names and "server" in names:
        return "server"
    return "other"
