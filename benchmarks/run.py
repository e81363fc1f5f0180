"""Every benchmark of speed, its result kept in results.json and shown in benchmarks/README.md and README.md.

    python benchmarks/run.py                    # those without a result for the source as it is
    python benchmarks/run.py --only step_trl    # that one, again
    python benchmarks/run.py --table            # the tables again from results.json, measuring nothing

Stop it whenever you like: the same command goes on with the benchmarks that are missing. Those that need other
packages run where TURNSCALE_PEERS names an interpreter that has them, and are skipped with a message elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rows import Row, read
from workers import PEERS, peers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
REASONS = ROOT / "benchmarks" / "reasons.json"
"""Why a target is missed: the beginning of a row's name, and the reason shown beside it where it is."""
PAGES = {"full": ROOT / "benchmarks" / "README.md", "short": ROOT / "README.md"}
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


@dataclass(frozen=True)
class Benchmark:
    """One script of this folder.

    Attributes:
        name: of the script, without its suffix.
        arguments: beyond ``--rows FILE``.
        minutes: on two idle cores, about.
        peers: ``yes`` (needs them, and calls them itself), ``inside`` (runs in their interpreter) or ``no``.
    """

    name: str
    minutes: float
    arguments: tuple[str, ...] = ()
    peers: str = "no"

    @property
    def command(self) -> str:
        """What a reader types."""
        words = " ".join([f"benchmarks/{self.name}.py", *self.arguments])
        if self.peers == "inside":
            return f"PYTHONPATH=src ${PEERS} {words}"
        return f"python {words}"


BENCHMARKS = [
    Benchmark("step_trl", 3, peers="yes"),
    Benchmark("rollout", 2, ("--batch", "128", "--repeats", "5")),
    Benchmark("update", 2),
    Benchmark("scaling", 4),
    Benchmark("startup", 1.5),
    Benchmark("pack", 8, ("--steps", "5")),
    Benchmark("render", 2),
    Benchmark("dag", 8, ("100", "1000")),
    Benchmark("credit", 1, ("--shapes", "64x4096")),
    Benchmark("credit_verl", 0.5, peers="inside"),
    Benchmark("bootstrap", 1),
]


def main() -> None:
    """Measure what is asked for or missing, then renew the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument(
        "--only", nargs="+", choices=names, help="measure these, whether or not they are there"
    )
    parser.add_argument("--all", action="store_true", help="measure all again")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    results = load()
    source = source_digest()
    if args.table:
        chosen = []
    elif args.only:
        chosen = [benchmark for benchmark in BENCHMARKS if benchmark.name in args.only]
    else:
        chosen = [b for b in BENCHMARKS if args.all or results.get(b.name, {}).get("source") != source]
    minutes = sum(benchmark.minutes for benchmark in chosen)
    print(
        f"{len(chosen)} of {len(BENCHMARKS)} benchmarks to run, about {minutes:.0f} minutes on two idle cores"
    )
    failed = []
    for number, benchmark in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] {benchmark.name}: {benchmark.command}", flush=True)
        if benchmark.peers != "no" and peers() is None:
            print(f"skipped: {PEERS} names no interpreter with the other packages (benchmarks/README.md)")
            continue
        found = measure(benchmark, source)
        if found is None:
            failed.append(benchmark.name)
            continue
        results[benchmark.name] = found
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    renew(results)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def measure(benchmark: Benchmark, source: str) -> dict[str, Any] | None:
    """The result of one benchmark, or None when it failed."""
    python = str(peers()) if benchmark.peers == "inside" else sys.executable
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows.json"
        script = ROOT / "benchmarks" / f"{benchmark.name}.py"
        started = time.monotonic()
        done = subprocess.run(
            [python, str(script), *benchmark.arguments, "--rows", str(rows)], cwd=ROOT, env=env
        )
        seconds = time.monotonic() - started
        if done.returncode or not rows.exists():
            print(f"{benchmark.name} ended with exit code {done.returncode} and no result")
            return None
        found = [asdict(row) for row in read(rows)]
    print(f"took {seconds:.0f} s")
    return {
        "source": source,
        "command": benchmark.command,
        "seconds": round(seconds),
        "machine": machine(),
        "rows": found,
    }


def machine() -> str:
    """Processor, cores and the versions that decide speed."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.machine()}, {os.cpu_count()} cores, torch {version('torch')}"


def source_digest() -> str:
    """A digest of the package and the benchmarks: results of another source are measured again."""
    digest = hashlib.sha256()
    folders = (ROOT / "src" / "turnscale", ROOT / "benchmarks")
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def load() -> dict[str, Any]:
    """The results so far."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def renew(results: dict[str, Any]) -> None:
    """Write the tables between the markers of the pages."""
    for kind, path in PAGES.items():
        page = path.read_text(encoding="utf-8")
        path.write_text(with_table(page, table(results, kind)), encoding="utf-8")
    print("\n" + table(results, "full"))


def with_table(page: str, text: str) -> str:
    """The page with what stands between its markers replaced."""
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def table(results: dict[str, Any], kind: str) -> str:
    """The Markdown table: all rows, or (``short``) those with a target, without units and commands."""
    measured = [(b, results[b.name]) for b in BENCHMARKS if b.name in results]
    rows = [(result, Row(**row)) for _, result in measured for row in result["rows"]]
    if kind == "short":
        lines = ["| what | times better | target | |", "| --- | ---: | ---: | --- |"]
        lines += [
            f"| {row.name} | {number(row.ratio)} | {number(row.target)} | {row.verdict} |"
            for _, row in rows
            if row.target is not None
        ]
        return "\n".join(lines)
    lines = ["| benchmark | ours | peer or budget | ratio | target | | notes |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | --- | --- |")
    for _, row in rows:
        lines.append(
            f"| {row.name} | {number(row.ours)} {row.unit} | {with_unit(row)} | {number(row.ratio)} | "
            f"{number(row.target)} | {row.verdict} | {notes(row)} |"
        )
    commands = [
        f"- `{result['command']}`: {result['seconds']} s on {result['machine']}" for _, result in measured
    ]
    return "\n".join([*lines, "", "Measured by", "", *commands])


def notes(row: Row) -> str:
    """What is needed to read the row; where its target was missed, why."""
    reasons: dict[str, str] = json.loads(REASONS.read_text(encoding="utf-8"))
    why = [
        reason for start, reason in reasons.items() if row.verdict == "missed" and row.name.startswith(start)
    ]
    return "; ".join(text for text in [row.note, *why[:1]] if text)


def with_unit(row: Row) -> str:
    """The peer's value with its unit, or nothing."""
    return "" if row.peer is None else f"{number(row.peer)} {row.unit}"


def number(value: float | None) -> str:
    """Three figures, thousands separated; nothing for None."""
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


if __name__ == "__main__":
    main()
