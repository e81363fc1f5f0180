"""Contenders of a paired run, each in a process and an interpreter of its own, taking turns at one's command.

A worker answers lines of JSON on its standard input with one line of JSON each. While one works the others wait, so
they never share a core and whatever slows the machine down slows all of them alike.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = "TURNSCALE_PEERS"
"""Environment variable: the interpreter of the environment that benchmarks/README.md makes for other packages."""


class WorkerError(RuntimeError):
    """A contender stopped; its own message is on stderr."""


class Worker:
    """A script of this folder in another process; a context that ends it."""

    def __init__(self, python: str | Path, script: str, *arguments: str | Path) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
        self._name = script
        self._process = subprocess.Popen(
            [str(python), str(ROOT / "benchmarks" / script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def ask(self, command: str, **values: Any) -> Any:
        """Send a command and wait for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **values}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise WorkerError(f"{self._name} stopped with exit code {self._process.wait()} at '{command}'")
        return json.loads(answer)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Orders:
    """The worker's end. Whatever else the process prints goes to stderr."""

    def __init__(self) -> None:
        self._replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def next(self) -> dict[str, Any] | None:
        """The next command, or None when there are no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def reply(self, answer: Any) -> None:
        """Answer the command."""
        self._replies.write(json.dumps(answer) + "\n")
        self._replies.flush()

    def serve(self, commands: dict[str, Callable[..., Any]]) -> None:
        """Answer commands until there are no more."""
        while (order := self.next()) is not None:
            self.reply(commands[order.pop("command")](**order))


def peers() -> Path | None:
    """The peers' interpreter, from the environment variable, or None where there is none.

    Raises SystemExit where the variable names a file that is not a program.
    """
    named = os.environ.get(PEERS)
    if not named:
        return None
    found = shutil.which(named)
    if found is None:
        raise SystemExit(f"{PEERS}={named} is not an interpreter; see benchmarks/README.md.")
    return Path(found)


def rise(baseline: float) -> float:
    """MiB by which the resident set has exceeded ``baseline`` since :func:`forget`."""
    return max(0.0, memory()["peak"] - baseline)


def forget() -> float:
    """Let the peak of the resident set begin anew; gives the resident MiB now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory()["resident"]


def clock() -> tuple[float, float]:
    """(CPU seconds of this process, wall seconds)."""
    return time.process_time(), time.perf_counter()


def memory() -> dict[str, float]:
    """MiB: resident now, and the most so far."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "resident": int(fields["VmRSS"].split()[0]) / 1024,
        "peak": int(fields["VmHWM"].split()[0]) / 1024,
    }
