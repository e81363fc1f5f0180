"""Cost per seed of runs alone, in turn in one process, and side by side, on this machine's CPU.

    python benchmarks/pack.py [--seeds 1 2 5 10] [--steps 6] [--repeats 5] [--json kept.json] [--rows rows.json]

Every contender is a process of its own that trains GRPO at the sizes of the scale ``quick`` (16 prompts by 4
rollouts, the dense local model) with tracking, checkpoints and final files, as a job of the workflow does. CPU
seconds, wall seconds and peak memory are the operating system's for that process. "Without the start" leaves out what
it did before its first run began: interpreter, imports, panels. Repeats are interleaved and medians are printed; a
ratio is a run alone over the pack, per seed, within a repeat. The adapters of each seed are compared to the byte
first. With ``--json`` finished processes are kept in that file, and the command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rows import Row, write

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("alone", "in turn", "side by side")


def setting(folder: Path) -> None:
    """A barely trained base of the search family, with its panels, and an empty tracking store."""
    import yaml

    from turnscale.envs.panels import make_panels
    from turnscale.envs.registry import load_family
    from turnscale.track.store import init_tracking
    from turnscale.train.base import make_base

    init_tracking(folder)
    family_settings = yaml.safe_load((ROOT / "configs/families/search.yaml").read_text())
    model = yaml.safe_load((ROOT / "configs/models/qwen3-tiny.yaml").read_text())
    family = load_family(family_settings)
    panels = make_panels(family, {"train": 256, "validation": 50, **dict.fromkeys(family.benchmarks, 4)})
    panels.save(folder / "panels.json")
    training = {"steps": 150, "batch": 48, "lr": 3e-3, "report_tasks": 2, "report_attempts": 2}
    spec = {"family": family_settings, "model": model, "training": training, "threads": 1}
    record = make_base(spec, folder / "base", panels)
    (folder / "base.json").write_text(json.dumps({"spec": spec, "record": record}))


def contend(folder: Path, way: str, seeds: list[int], steps: int) -> None:
    """The process under measurement: train the seeds, then print what it cost."""
    from turnscale.envs.panels import load_panels
    from turnscale.files import sha256
    from turnscale.methods import load_method
    from turnscale.study import Run, Spec
    from turnscale.train.pack import Member, train_pack

    base = json.loads((folder / "base.json").read_text())
    panels = load_panels(folder / "panels.json")
    method = load_method("grpo", {}, directory=ROOT / "configs" / "methods")
    training = {"steps": steps, "prompts": 16, "group_size": 4, "lr": 2e-3, "critic_lr": 1e-3}
    training |= {"validate_every": 10, "validation_attempts": 2}
    spec = Spec(
        "train", {"threads": 1, "base": base["spec"], "method": method.resolved(), "training": training}
    )
    runs = [Run("bench", "bench", "search", "qwen3-tiny", "grpo", "grpo", seed, spec) for seed in seeds]
    cpu, wall = time.process_time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        shutil.copytree(folder / "mlflow", root / "mlflow")
        members = [Member(run, None, root / f"seed-{run.seed}") for run in runs]
        report = train_pack(members, base["record"], panels, root=root, stack=way == "side by side")
        trained = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        if report["failed"]:
            raise SystemExit(f"failed: {report['failed']}")
        adapters = [sha256(member.work / "final/adapter/adapter_model.safetensors") for member in members]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"training": trained, "peak_mb": usage.ru_maxrss / 1024, "adapters": adapters}))


def run(folder: Path, way: str, count: int, steps: int) -> dict[str, Any]:
    """One process: its own report, and the CPU and wall seconds of all of it."""
    command = [sys.executable, __file__, "--contend", str(folder), way, str(count), "--steps", str(steps)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    env.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "whole": {"cpu": cpu, "wall": time.perf_counter() - started}}


def rows_of(found: dict[str, dict[str, Any]], seeds: list[int], repeats: int, steps: int) -> list[Row]:
    """Medians per seed against the run alone of the same repeat: the whole process, and its training part."""
    rows = []
    for count in seeds:
        for way in WAYS[1:]:
            pairs = [
                (found[f"{repeat}/alone/1"], found[f"{repeat}/{way}/{count}"]) for repeat in range(repeats)
            ]
            peak = statistics.median(pack["peak_mb"] for _, pack in pairs)
            for part, what in (("whole", "all of the process"), ("training", "without the start")):
                alone = [solo[part]["cpu"] for solo, _ in pairs]
                each = [pack[part]["cpu"] / count for _, pack in pairs]
                wall = statistics.median(pack[part]["wall"] / count for _, pack in pairs)
                ratio = statistics.median(a / e for a, e in zip(alone, each, strict=True))
                note = f"{steps} steps a run; {wall:.1f} s wall a seed; peak {peak:.0f} MB for all"
                name = f"{count} seeds {way}, {what}"
                ours, peer = statistics.median(each), statistics.median(alone)
                rows.append(Row(name, "CPU-s a seed", ours, peer, ratio, note=note))
    return rows


def same(found: dict[str, dict[str, Any]]) -> int:
    """How many adapters were compared; each must equal the others of its seed.

    Raises:
        SystemExit: one does not.
    """
    known: dict[int, str] = {}
    compared = 0
    for name, row in found.items():
        for seed, adapter in enumerate(row["adapters"]):
            if known.setdefault(seed, adapter) != adapter:
                raise SystemExit(f"{name}: seed {seed} has another adapter than elsewhere.")
            compared += 1
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where finished processes are kept")
    parser.add_argument("--rows", type=Path, help="write the rows of the table of benchmarks here")
    parser.add_argument(
        "--contend", nargs=3, metavar=("FOLDER", "WAY", "SEEDS"), help="used by the script itself"
    )
    args = parser.parse_args()
    if args.contend:
        folder, way, count = args.contend
        contend(Path(folder), way, list(range(int(count))), args.steps)
        return
    found: dict[str, dict[str, Any]] = {}
    if args.json and args.json.exists():
        kept = json.loads(args.json.read_text())
        if kept["steps"] == args.steps:
            found = kept["processes"]
    with tempfile.TemporaryDirectory() as scratch:
        setting(Path(scratch))
        for repeat in range(args.repeats):
            for way, count in [("alone", 1), *((way, n) for n in args.seeds for way in WAYS[1:])]:
                name = f"{repeat}/{way}/{count}"
                if name in found:
                    continue
                found[name] = run(Path(scratch), way, count, args.steps)
                print(name, {k: round(v, 2) for k, v in found[name]["whole"].items()}, file=sys.stderr)
                if args.json:
                    args.json.write_text(json.dumps({"steps": args.steps, "processes": found}, indent=1))
    print(f"{same(found)} adapters compared: those of one seed are equal to the byte.\n")
    rows = rows_of(found, args.seeds, args.repeats, args.steps)
    print("| | CPU-s a seed | alone | ratio | |\n|---|---:|---:|---:|---|")
    for row in rows:
        print(f"| {row.name} | {row.ours:.2f} | {row.peer:.2f} | {row.ratio:.2f} | {row.note} |")
    if args.rows:
        write(args.rows, rows)


if __name__ == "__main__":
    main()
