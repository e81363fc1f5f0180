"""Running the workflow with a progress bar for the whole and one for every job at work.

The bars read what is on disk anyway: which records exist, and the last progress line of each job's log. Ctrl-C and
SIGTERM stop Snakemake and its jobs, trainings with a checkpoint; finished work is kept.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from turnscale.errors import COMPLAINT
from turnscale.planning import job_costs, remaining_costs
from turnscale.study import Plan
from turnscale.workflow import Products

FRESH = 60.0
"""Seconds after which a log that says nothing new no longer counts as a job at work."""

MOST_COMPLAINTS = 5
"""Of more jobs that failed in different ways, the logs tell."""

LAST_COUNT = re.compile(rb"([^\r\n|]*?):?\s+\d+%\|[^|\r\n]*\|\s*(\d+)/(\d+)\s")


@dataclass(frozen=True)
class Job:
    """A job at work: what it is, and how much of its current phase is done (0 to 1)."""

    record: Path
    label: str
    share: float


def job_logs(plan: Plan, pack: int = 1) -> dict[Path, tuple[Path, str]]:
    """Record -> (log file, name) of every base, critic, training and evaluation; the rules write these logs.

    With ``pack`` > 1 the trainings of a pack share its log.
    """
    products = Products(plan, pack=pack)
    logs = Path("logs") / plan.scale.scale
    found: dict[Path, tuple[Path, str]] = {}
    for cell in plan.cells:
        place = f"{cell.family}-{cell.model}"
        found[plan.base_path(cell)] = logs / "base" / f"{place}-{cell.base.hash}.log", f"base {cell.model}"
        for seed in cell.seeds:
            if cell.critic is not None:
                log = logs / "critic" / f"{place}-{cell.critic.hash}-seed-{seed}.log"
                found[plan.critic_path(cell, seed)] = log, f"critic seed {seed}"
            stem = f"{place}-{cell.cell}-{cell.train.hash}"
            name = f"{cell.cell} seed {seed}"
            chunk = products.chunk(cell, seed)
            whose = f"seeds-{chunk[0]}-{chunk[-1]}" if pack > 1 and cell.trains else f"seed-{seed}"
            train = logs / plan.study.study / "train" / f"{stem}-{whose}.log"
            found[plan.run_path(cell, seed)] = train, f"train {name}"
            attempt = f"{stem}-{cell.evaluation.hash}-seed-{seed}.log"
            found[plan.evaluation_path(cell, seed)] = (
                logs / plan.study.study / "evaluate" / attempt,
                f"evaluate {name}",
            )
    return found


def at_work(plan: Plan, now: float, pack: int = 1) -> Iterator[Job]:
    """Jobs whose log has grown in the last minute and whose record is not there yet.

    Of a pack, the run that its log speaks of.
    """
    logs = job_logs(plan, pack)
    shared = Counter(log for log, _ in logs.values())
    for record, (log, name) in logs.items():
        path = plan.root / log
        if (plan.root / record).exists() or not path.exists() or now - path.stat().st_mtime > FRESH:
            continue
        phase, share = last_count(path)
        if shared[log] > 1 and not name.endswith(phase or "?"):
            continue
        yield Job(record, f"{name} ({phase})" if phase and phase not in name else name, share)


def last_count(log: Path) -> tuple[str, float]:
    """Text and share of the last progress line in a log, ("", 0) where there is none."""
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - 4096))
        lines = LAST_COUNT.findall(handle.read())
    if not lines:
        return "", 0.0
    text, done, total = lines[-1]
    return text.decode("utf-8", "replace").strip(), int(done) / max(1, int(total))


def reproduce(plan: Plan, cores: str, targets: list[str], console: Console, pack: int = 1) -> int:
    """Run Snakemake for a plan, showing progress; its own output goes to a log file.

    Where a finished input has to be made again, e.g. a checkpoint whose rule was edited, Snakemake makes that and
    ends well, whatever else is missing. It is then run again.

    Args:
        plan: the study at a scale.
        cores: number of cores, or ``all``.
        targets: Snakemake targets, [] for everything.
        console: where to show progress; one line a finished job where it is no terminal.
        pack: seeds of a cell that share a process.

    Returns:
        Snakemake's exit status; as shells tell it, 130 after Ctrl-C and 143 after SIGTERM. 1 if it ends well
        twice with the same outputs missing.
    """
    products = Products(plan, pack=pack)
    before: list[str] = []
    while True:
        status = _once(plan, cores, targets, console, pack)
        missing = [] if status or targets else products.missing
        if not missing:
            return status
        if missing == before:
            console.print(f"The workflow ended well and {len(missing)} outputs are missing: {missing[0]} ...")
            return 1
        before = missing


def _once(plan: Plan, cores: str, targets: list[str], console: Console, pack: int) -> int:
    log = plan.root / "logs" / plan.scale.scale / plan.study.study / "snakemake.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = [f"study={plan.study.study}", f"scale={plan.scale.scale}", f"seeds={len(plan.seeds)}"]
    settings.append(f"pack={pack}")
    command = ["snakemake", *targets, "--cores", cores, "--config", *settings]
    started = time.time()
    with log.open("wb") as handle, stoppable(command, plan.root, console, stdout=handle) as running:
        (_show if console.is_terminal else _tell)(plan, running.process, console, pack)
    status = running.process.wait()
    if running.stopped:
        console.print("Stopped. The same command goes on from here.")
        return 128 + running.stopped
    if status:
        console.print(
            f"\nThe workflow stopped with status {status}. The end of {log.relative_to(plan.root)}:\n"
        )
        _plain(console, log.read_text(errors="replace").splitlines()[-40:])
        tell_complaints(log.parents[1], started, console)
    return status


def _plain(console: Console, lines: Sequence[str]) -> None:
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def tell_complaints(logs: Path, since: float, console: Console) -> None:
    """Print last of all what jobs refused and why, each once, with the log that says more.

    Args:
        logs: folder of the scale's logs.
        since: seconds since the epoch; logs that were not written since are left out.
        console: where to print.
    """
    said: dict[str, Path] = {}
    for log in sorted(logs.rglob("*.log")):
        if log.name != "snakemake.log" and log.stat().st_mtime >= since:
            for line in log.read_text(errors="replace").splitlines():
                if line.startswith(COMPLAINT):
                    said.setdefault(line, log)
    for line, log in list(said.items())[-MOST_COMPLAINTS:]:
        _plain(console, [f"\n{log}:", line])


@dataclass
class Running:
    """A Snakemake at work, and the signal that asked it to stop, 0 for none."""

    process: subprocess.Popen[bytes]
    stopped: int = 0


@contextmanager
def stoppable(
    command: Sequence[str],
    folder: Path,
    console: Console,
    *,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | None = None,
) -> Iterator[Running]:
    """Start Snakemake; on leaving, wait for it. SIGTERM is passed on to it, and Ctrl-C reaches it by itself.

    Args:
        command: its command line.
        folder: where it works.
        console: where to say that it is being stopped.
        env: its environment; this one's if None.
        stdout: where its output goes, errors too; to this process's own streams if None.
    """
    errors = None if stdout is None else subprocess.STDOUT
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=stdout, stderr=errors)
    running = Running(process)

    def stop(signum: int, frame: object) -> None:
        running.stopped = signum
        console.print("Stopping: trainings at work write a checkpoint first ...")
        if signum == signal.SIGTERM:
            process.terminate()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield running
        process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _show(plan: Plan, process: subprocess.Popen[bytes], console: Console, pack: int) -> None:
    costs = job_costs(plan)
    missing = sum(remaining_costs(plan).values())
    started = time.monotonic()
    columns = (
        TextColumn("{task.description}", table_column=None),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>4.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        whole = progress.add_task("whole study", total=max(missing, 1e-9), left="")
        bars: dict[Path, TaskID] = {}
        while process.poll() is None:
            jobs = list(at_work(plan, time.time(), pack))
            partial = sum(costs[job.record] * job.share for job in jobs)
            done = missing - sum(remaining_costs(plan).values()) + partial
            left = _left(done, missing, time.monotonic() - started)
            progress.update(whole, completed=done, left=left)
            for job in jobs:
                if job.record not in bars:
                    bars[job.record] = progress.add_task(job.label, total=1.0, left="")
                progress.update(bars[job.record], completed=job.share, description=job.label)
            for record in [record for record in bars if record not in {job.record for job in jobs}]:
                progress.remove_task(bars.pop(record))
            time.sleep(0.5)
        if process.returncode == 0:
            progress.update(whole, completed=max(missing, 1e-9), left="")


def _tell(plan: Plan, process: subprocess.Popen[bytes], console: Console, pack: int) -> None:
    names = {record: name for record, (_, name) in job_logs(plan, pack).items()}
    absent = set(remaining_costs(plan))
    count, missing = len(absent), sum(remaining_costs(plan).values())
    started = time.monotonic()
    while process.poll() is None:
        remaining = remaining_costs(plan)
        for record in sorted(absent - set(remaining)):
            done = missing - sum(remaining.values())
            left = _left(done, missing, time.monotonic() - started)
            console.print(f"{count - len(remaining)}/{count} {names[record]}  {left}", highlight=False)
        absent &= set(remaining)
        time.sleep(1.0)


def _left(done: float, total: float, elapsed: float) -> str:
    """Time left if the rest goes at the pace so far; "" until there is a pace."""
    if done <= 0 or elapsed < 10:
        return ""
    minutes = elapsed * (total - done) / done / 60
    return f"about {minutes:.0f} min left" if minutes >= 1.5 else "about a minute left"
