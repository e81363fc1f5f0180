"""Kill anywhere: SIGKILL trainers, evaluators, Snakemake and the tracking server until none is left to kill.

    python -m tests.chaos.campaign [--seed 0] [--kills 32] [--out FOLDER] [--summary FILE]

A small study runs undisturbed in one folder. In others the same study is killed at random points, and the one command
``turnscale reproduce`` is repeated after each stop until it ends by itself; half the rounds use the project's own
SQLite store, half an MLflow server on loopback. Then tables, adapters, metrics and the store must be those of the
undisturbed run. Only processes that the campaign started are touched: they carry a mark in their environment. Every
event is a line of ``FOLDER/log.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from tests.chaos.checks import Folder, differences
from tests.chaos.processes import MARK, Family, Seen
from tests.chaos.server import Server
from turnscale.progress import last_count
from turnscale.study import resolve

PROJECT = Path(__file__).parents[2]
HERE = Path(__file__).parent
COMMAND = ["turnscale", "reproduce", "chaos", "--scale", "chaos", "--cores", "2"]
SHARES = {"trainer": 0.37, "evaluator": 0.23, "snakemake": 0.2, "server": 0.2}
"""Part of all kills that each kind of process gets."""
STARTS = {"trainer": 14.0, "evaluator": 6.5, "snakemake": 3.0}
"""Processor seconds after which a process of a kind is usually done, or, for Snakemake, waits for its jobs."""
PHASES = ("before its first checkpoint", "at its steps", "finishing")
"""Where a trainer is killed: a process that goes on from a checkpoint has a first one of its own, too."""
ROUNDS = 8
RERUNS = 60
PATIENCE = 3600.0
"""Seconds after which one command that has not ended counts as hanging."""


def make_folder(folder: Path, short: bool = False) -> Path:
    """A copy of the project with the chaos study and nothing run yet."""
    folder.mkdir(parents=True)
    for name in ("Snakefile", "workflow", "profiles", "configs"):
        source = PROJECT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    study = yaml.safe_load((HERE / "study.yaml").read_text(encoding="utf-8"))
    scale = yaml.safe_load((HERE / "scale.yaml").read_text(encoding="utf-8"))
    if short:
        del study["tables"]["chaos_critic"], study["figures"]
        scale |= {"groups": ["short"], "seeds": 1}
        scale["train"]["steps"] = 30
        scale["runtime"]["checkpoint_every"] = 1000  # only a signal makes a checkpoint before the last step
    (folder / "configs/studies/chaos.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    (folder / "configs/scales/chaos.yaml").write_text(yaml.safe_dump(scale, sort_keys=False))
    return folder


def environment(mark: str, uri: str | None = None) -> dict[str, str]:
    """This environment with the campaign's mark, one thread a process, and a tracking store."""
    found = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found.get('PATH', '')}"
    found.pop("MLFLOW_TRACKING_URI", None)
    return found | ({} if uri is None else {"MLFLOW_TRACKING_URI": uri})


def opened(folder: Path, database: Path | None = None) -> Folder:
    """A finished study's folder, ready to be checked."""
    return Folder(resolve("chaos", "chaos", root=folder), database or folder / "mlflow/mlflow.db")


class Log:
    """The campaign's events, one JSON line each, also kept in memory."""

    def __init__(self, path: Path) -> None:
        self._handle = path.open("w", encoding="utf-8")
        self._started = time.monotonic()
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: str, **fields: Any) -> dict[str, Any]:
        entry = {"event": event, "seconds": round(time.monotonic() - self._started, 1), **fields}
        self.events.append(entry)
        self._handle.write(json.dumps(entry) + "\n")
        self._handle.flush()
        return entry


@dataclass
class Aim:
    """Where a process is to be killed: after so much processor time of its own, or of a job beside it."""

    cpu: float
    beside: bool = False


@dataclass
class Round:
    """One study killed until its command ends by itself.

    Attributes:
        left: kills still to be made, by kind; shared by all rounds.
        spare: chance that a process is left alone.
        late: part of a process's usual processor time within which it is killed.
    """

    folder: Path
    left: Counter[str]
    rng: random.Random
    log: Log
    mark: str
    server: Server | None = None
    spare: float = 0.15
    late: float = 1.0
    aims: dict[tuple[int, int], Aim | None] = field(default_factory=dict)
    lost: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.family = Family(self.mark)
        self.environment = environment(self.mark, None if self.server is None else self.server.uri)

    def run(self) -> None:
        """Repeat the command until it ends well.

        Raises:
            RuntimeError: it does not after many repeats, or hangs.
        """
        for number in range(RERUNS):
            if self.server is not None:
                self._server_up()
            status, said = self._once(number)
            self.log("command ended", round=self.folder.name, run=number, status=status, said=said[-8:])
            if status == 0:
                return
        raise RuntimeError(f"the study did not end by itself in {RERUNS} runs; see {self.folder}")

    def _server_up(self) -> None:
        assert self.server is not None
        if self.server.process is None:
            self.server.start()
        self.server.wait()

    def _once(self, number: int) -> tuple[int, list[str]]:
        path = self.folder / f"command-{number}.log"
        with path.open("wb") as out:
            process = subprocess.Popen(
                COMMAND, cwd=self.folder, env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + PATIENCE
        restart = 0.0
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"a command hangs; see {path}")
            living = self.family.living()
            for seen in living:
                self._consider(seen, living, number)
            if self.server is not None and self.server.process is None:
                restart = restart or time.monotonic() + self.rng.uniform(0, 4)
                if time.monotonic() > restart:
                    self.server.start()
                    restart = 0.0
            time.sleep(0.1)
        return process.returncode, path.read_text(errors="replace").splitlines()

    def _consider(self, seen: Seen, living: list[Seen], number: int) -> None:
        key = seen.pid, seen.started
        if seen.kind not in SHARES:
            return
        if key not in self.aims:
            self.aims[key] = self._aim(seen)
            self._found_again(seen)
        aim = self.aims[key]
        if aim is None or not self.left[seen.kind]:
            return
        jobs = [other for other in living if other.kind in ("trainer", "evaluator")]
        # A new Snakemake is killed for its own jobs, not at once for those that outlived the one before it.
        own = [job for job in jobs if seen.kind == "server" or job.started > seen.started]
        beside = max((job.cpu for job in own), default=0.0)
        if (beside if aim.beside else seen.cpu) < aim.cpu:
            return
        if seen.kind == "server" and not (self.server is not None and self.server.answers()):
            return  # it still starts: nobody would notice
        self.aims[key] = None
        self._kill(seen, jobs, number)

    def _aim(self, seen: Seen) -> Aim | None:
        if (
            self.server is not None
            and seen.kind == "server"
            and seen.pid != getattr(self.server.process, "pid", 0)
        ):
            return None  # a worker; it is killed with its server
        if seen.kind != "server" and self.rng.random() < self.spare:
            return None
        if seen.kind == "server" or (seen.kind == "snakemake" and self.rng.random() < 0.75):
            return Aim(self.rng.uniform(0.5, self.late * STARTS["trainer"]), beside=True)
        return Aim(self.rng.uniform(0.3, self.late * STARTS[seen.kind]))

    def _kill(self, seen: Seen, jobs: list[Seen], number: int) -> None:
        if not self.family.freeze(seen):
            return
        point = {"cpu_seconds": seen.cpu, **self._point(seen)}
        point["jobs_at_work"] = [f"{job.kind} {job.pid}" for job in jobs if job.pid != seen.pid]
        if not self.family.kill(seen):
            return
        if seen.kind == "server" and self.server is not None:
            self.server.stop()
        self.left[seen.kind] -= 1
        fields = {
            "round": self.folder.name,
            "run": number,
            "kind": seen.kind,
            "pid": seen.pid,
            "point": point,
        }
        entry = self.log("kill", store="server" if self.server else "sqlite", record=seen.record, **fields)
        if seen.record:
            self.lost[seen.record] = entry

    def _found_again(self, seen: Seen) -> None:
        if seen.record in self.lost:
            self.log(
                "started again",
                after=self.lost.pop(seen.record)["pid"],
                pid=seen.pid,
                kind=seen.kind,
                record=seen.record,
                from_step=self._point(seen).get("checkpoint"),
            )

    def _point(self, seen: Seen) -> dict[str, Any]:
        """What a job had done: progress in its log, newest checkpoint, and whether it was writing one."""
        found: dict[str, Any] = {}
        if seen.kind in ("trainer", "evaluator"):
            try:
                log = Path(f"/proc/{seen.pid}/fd/1").readlink()
                found["progress"] = last_count(log)
            except OSError:
                found["progress"] = ["", 0.0]
        if seen.kind == "trainer":
            works = list(
                (self.folder / "checkpoints").glob(
                    f"*/*/*/*/{seen.option('--cell')}-*/seed-{seen.option('--seed')}"
                )
            )
            places = [path for work in works for path in work.iterdir()]
            names = [path.name for path in places]
            steps = {int(path.name[5:]): path for path in places if path.name.startswith("step-")}
            found["checkpoint"] = max(steps, default=None)
            found["own_checkpoint"] = any(newer(path, seen.since) for path in steps.values())
            found["writing_checkpoint"] = any(name.startswith(".step-") for name in names)
            found["finishing"] = any(name.lstrip(".").startswith("final") for name in names)
        return found


def newer(path: Path, since: float) -> bool:
    """Whether a file or folder is there and was written after that time (seconds since 1970)."""
    try:
        return path.stat().st_mtime > since
    except FileNotFoundError:
        return False


def shares(kills: int) -> Counter[str]:
    """Kills by kind; the first kind takes what rounding leaves."""
    found = Counter({kind: round(kills * share) for kind, share in SHARES.items()})
    found["trainer"] += kills - found.total()
    return found


def undisturbed(folder: Path, mark: str, short: bool = False) -> Folder:
    """The study run once, with nothing killed.

    Raises:
        RuntimeError: it failed.
    """
    make_folder(folder, short)
    done = subprocess.run(COMMAND, cwd=folder, env=environment(mark), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the undisturbed study failed:\n{done.stdout}{done.stderr}")
    return opened(folder)


def verify(folder: Path, uri: str | None, mark: str) -> list[str]:
    """What ``turnscale runs verify`` finds wrong."""
    command = ["turnscale", "runs", "verify", "--study", "chaos", "--scale", "chaos"]
    done = subprocess.run(command, cwd=folder, env=environment(mark, uri), capture_output=True, text=True)
    return [] if done.returncode == 0 else [*done.stdout.splitlines(), *done.stderr.splitlines()]


def campaign(out: Path, seed: int, kills: int) -> dict[str, Any]:
    """Run a whole campaign in a new folder.

    Returns:
        Its summary: kills by kind and by store, reruns of the command, what was lost.
    """
    out.mkdir(parents=True)
    mark, rng, log, left = uuid4().hex, random.Random(seed), Log(out / "log.jsonl"), shares(kills)
    started = time.monotonic()
    problems: list[str] = []
    rounds = 0
    try:
        calm = undisturbed(out / "undisturbed", mark)
        log("undisturbed study ended")
        while left.total() and rounds < ROUNDS:
            folder = make_folder(out / f"round-{rounds}")
            server = Server(out / f"server-{rounds}", environment(mark)) if rounds % 2 else None
            Round(folder, left, rng, log, mark, server).run()
            if server is not None:
                server.start() if server.process is None else None
                server.wait()
            found = differences(opened(folder, server.database if server else None), calm)
            found += verify(folder, server.uri if server else None, mark)
            if server is not None:
                server.stop()
            log("round ended", round=folder.name, differences=found)
            problems += [f"{folder.name}: {problem}" for problem in found]
            rounds += 1
    finally:
        Family(mark).end()
    return summary(log.events, seed, rounds, problems, time.monotonic() - started)


def summary(
    events: list[dict[str, Any]], seed: int, rounds: int, problems: list[str], seconds: float
) -> dict[str, Any]:
    """Counts of a campaign's events."""
    made = [event for event in events if event["event"] == "kill"]
    ends = [event for event in events if event["event"] == "command ended"]
    trainers = [event["point"] for event in made if event["kind"] == "trainer"]
    phases = Counter(
        "finishing"
        if point["finishing"]
        else "at its steps"
        if point["own_checkpoint"] or point["progress"][1]
        else "before its first checkpoint"
        for point in trainers
    )
    return {
        "command": f"python -m tests.chaos.campaign --seed {seed}",
        "seed": seed,
        "rounds": rounds,
        "kills": len(made),
        "kills_by_kind": dict(sorted(Counter(event["kind"] for event in made).items())),
        "kills_by_store": dict(sorted(Counter(event["store"] for event in made).items())),
        "trainers_killed": {phase: phases[phase] for phase in PHASES},
        "trainers_killed_while_writing_a_checkpoint": sum(point["writing_checkpoint"] for point in trainers),
        "snakemake_killed_with_jobs_at_work": sum(
            event["kind"] == "snakemake" and bool(event["point"]["jobs_at_work"]) for event in made
        ),
        "commands_run": len(ends),
        "commands_that_failed": sum(event["status"] != 0 for event in ends),
        "manual_steps": 0,
        "lost": problems,
        "minutes": round(seconds / 60, 1),
    }


def main() -> int:
    """Run a campaign from the command line; 1 if anything was lost or kills are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="new folder for the studies and the log; a temporary one if absent"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=32)
    parser.add_argument("--summary", type=Path, help="file for the summary")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = given.out or Path(tempfile.mkdtemp(prefix="chaos-")) / "campaign"
    print(f"Studies and log.jsonl are in {out}", flush=True)
    found = campaign(out, given.seed, given.kills)
    text = json.dumps(found, indent=1) + "\n"
    (out / "summary.json").write_text(text)
    if given.summary is not None:
        given.summary.write_text(text)
    print(text)
    return 1 if found["lost"] or found["kills"] < given.kills else 0


if __name__ == "__main__":
    sys.exit(main())
