"""The command line: light, teaching, and never a traceback for a user's mistake."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


def turnscale(*arguments: str, cwd: Path = PROJECT, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    return subprocess.run(
        [sys.executable, "-c", "from turnscale.cli import main; main()", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**base, "COLUMNS": "120", "TERM": "dumb", **environment},
    )


def test_help_teaches_the_first_steps() -> None:
    done = turnscale("--help")
    assert done.returncode == 0
    for word in (
        "plan",
        "seeds",
        "runs",
        "methods",
        "audit",
        "grim",
        "power",
        "ui",
        "make reproduce",
        "First steps",
    ):
        assert word in done.stdout
    assert " job " not in done.stdout, "jobs are for the workflow"


def test_jobs_are_documented_though_hidden() -> None:
    done = turnscale("job", "--help")
    assert done.returncode == 0
    for word in (
        "tracking",
        "panels",
        "base",
        "critic",
        "gates",
        "train",
        "evaluate",
        "collect",
        "estimates",
    ):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("program", "allowed"),
    [
        ("import turnscale.cli", set()),
        ("import turnscale.study as s; s.resolve('mpo', 'quick').runs()", set()),
    ],
)
def test_the_command_line_and_a_plan_load_no_heavy_library(program: str, allowed: set[str]) -> None:
    heavy = {
        "torch",
        "numba",
        "transformers",
        "peft",
        "mlflow",
        "pandas",
        "scipy",
        "matplotlib",
        "snakemake",
    } - allowed
    program = f"import sys\n{program}\nprint(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--help"], set()),
        (["methods", "list"], set()),
        (["grim", "69.90", "--n", "103"], {"numpy"}),
        (["plan", "mpo", "--scale", "quick"], {"numpy", "scipy"}),
        (["power", "--sd", "2", "--gap", "4.33"], {"numpy", "scipy", "scipy.stats"}),
        (["audit", "configs/claims/mpo.yaml"], {"numpy", "scipy", "scipy.stats"}),
    ],
)
def test_a_command_loads_only_what_it_needs(arguments: list[str], allowed: set[str], tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    heavy = [
        "torch",
        "numba",
        "transformers",
        "peft",
        "mlflow",
        "snakemake",
        "pandas",
        "pyarrow",
        "matplotlib",
    ]
    heavy += ["numpy", "scipy", "scipy.stats"]
    program = (
        f"import sys\nsys.argv = ['turnscale', *{arguments!r}]\nfrom turnscale.cli import main\n"
        f"try:\n    main()\nfinally:\n    print('LOADED', sorted(set({heavy!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"LOADED {sorted(allowed)}", done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "nothing"], "choose one of"),
        (["plan", "mpo", "--scale", "nothing"], "nothing.yaml"),
        (["seeds", "add", "mpo", "--scale", "smoke", "--to", "1"], "is not more"),
        (["job", "train", "--spec", "x", "--study", "mpo", "--scale", "smoke", "--family", "search", "--model", "m",
          "--cell", "c", "--seed", "0", "--base", "b", "--panels", "p", "--out", "o"], "cannot be read"),
        (["reproduce", "mpo", "--scale", "smoke", "--cores", "many"], "--cores"),
        (["reproduce", "mpo", "--scale", "smoke", "--pack", "0"], "pack: must be a whole number from 1"),
        (["reproduce", "grouping", "--scale", "grouping5", "--pack", "2"], "pack: is of no use to a tabular study"),
        (["plan", "mpo", "--scale", "smoke", "--seeds", "0"], "seeds: must be a whole number of at least 1, got 0"),
        (["plan", "mpo", "--scale", "smoke", "--gap", "0.05"], "--gap: is 0.05 points, which no study could see"),
        (["ui", "--port", "70000"], "--port: is 70000. Remedy: give a number from 1 to 65535"),
        (["runs", "verify", "--digest", "abc"], "--digest: is of an archive, and none is named"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = turnscale(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("turnscale: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_the_interface_says_that_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = turnscale("ui", "--port", str(port))
    assert done.returncode == 2
    assert f"--port: port {port} cannot be used (Address already in use)" in done.stderr
    assert "http://" not in done.stdout


def test_a_wrong_setting_of_the_workflow_ends_snakemake_with_the_same_line(tmp_path: Path) -> None:
    """No line numbers of the rules, no traceback, and the exit code of ``turnscale``."""
    for name in ("configs", "workflow", "Snakefile", "profiles"):
        (tmp_path / name).symlink_to(PROJECT / name)
    for settings, said in (
        (["study=../x"], "studies: '../x' cannot be a file of configs/studies"),
        (["study=mpo", "scale=smoke", "share=3/2"], "share: is '3/2', which is no machine out of some."),
        (["study=grouping", "scale=grouping5", "pack=2"], "pack: is of no use to a tabular study"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", "-n", "--config", *settings],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"turnscale: {said}")
        assert "File " not in done.stderr and "Error" not in done.stderr


def test_runs_are_listed_of_names_only_and_none_is_said(tmp_path: Path) -> None:
    done = turnscale("runs", "list", "--scale", "a'b", cwd=tmp_path)
    assert done.returncode == 2 and "cannot be a file of configs/scales" in done.stderr
    assert turnscale("job", "tracking", cwd=tmp_path).returncode == 0
    done = turnscale("runs", "list", "--study", "mine", "--scale", "smoke", cwd=tmp_path)
    assert done.returncode == 0
    assert "The tracking store has no runs of mine at scale smoke." in done.stdout


@pytest.mark.skipif(
    shutil.which("setpriv") is None and os.getuid() == 0, reason="root may read everything here"
)
def test_what_may_not_be_read_is_not_said_to_be_unwritable(tmp_path: Path) -> None:
    """Without root's right to read everything, in a project whose methods are closed."""
    shutil.copytree(PROJECT / "configs", tmp_path / "configs")
    (tmp_path / "configs/methods").chmod(0)
    program = [
        sys.executable,
        "-c",
        "from turnscale.cli import main; main()",
        "plan",
        "mpo",
        "--scale",
        "smoke",
    ]
    if os.getuid() == 0:
        program = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *program]
    try:
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    finally:
        (tmp_path / "configs/methods").chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert "cannot be read or written (Permission denied). Remedy: make it readable" in done.stderr


def test_no_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    done = turnscale("runs", "list", "--scale", "smoke", cwd=tmp_path)
    assert done.returncode == 2
    assert "make reproduce" in done.stderr


def test_a_plan_says_what_is_missing_how_long_and_what_it_detects(tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    done = turnscale("plan", "mpo", "--scale", "smoke", "--cores", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("7 runs: 0 done, 7 missing", "minutes on 2 idle cores", "grpo - mpo", "80 % power"):
        assert word in done.stdout
    assert not (tmp_path / "results").exists(), "a plan writes nothing"


def test_a_plan_shows_what_was_declared_and_what_a_gap_needs(tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    done = turnscale("plan", "mpo", "--scale", "smoke", "--gap", "5", "--sd", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    for words in (
        "10 seeds per arm, looks at 3, 5 and 10, O'Brien-Fleming spending, alpha 0.05",
        "0.00035",
        "looks/smoke/mpo.jsonl",
        "a look at 2 seeds is not declared",
        "needs 7 seeds per arm for 80 % power",
        "The declared plan finds it with probability 9",
    ):
        assert words in said


def test_an_edited_specification_is_refused(tmp_path: Path) -> None:
    spec = tmp_path / "base-00000000.json"
    spec.write_text('{"x": 1}')
    done = turnscale(
        "job",
        "base",
        "--spec",
        str(spec),
        "--panels",
        "x",
        "--scale",
        "smoke",
        "--out",
        str(tmp_path / "base.json"),
    )
    assert done.returncode == 2
    assert "its content is that of" in done.stderr
