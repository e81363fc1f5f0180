"""What is printed when the workflow stops."""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console

from turnscale.errors import ConfigError, complaint
from turnscale.progress import MOST_COMPLAINTS, tell_complaints


def said(logs: Path, since: float) -> list[str]:
    out = io.StringIO()
    tell_complaints(logs, since, Console(file=out, width=40))
    return out.getvalue().splitlines()


def test_what_jobs_refused_comes_last_each_once_and_whole(tmp_path: Path) -> None:
    refusal = complaint(ConfigError("is absent " + "and absent " * 20, file="a.yaml", remedy="[add] it"))
    folder = tmp_path / "mpo" / "train"
    folder.mkdir(parents=True)
    for name, time in (("old", 100.0), ("first", 300.0), ("again", 301.0)):
        (folder / f"{name}.log").write_text(
            f"step 1\n{refusal}\nand turnscale: no complaint\n", encoding="utf-8"
        )
        os.utime(folder / f"{name}.log", (time, time))
    (tmp_path / "mpo" / "snakemake.log").write_text(f"{refusal}x\n", encoding="utf-8")
    assert said(tmp_path, 200.0) == ["", f"{folder / 'again.log'}:", refusal]
    assert said(tmp_path / "absent", 0.0) == []


def test_no_more_than_a_few_are_printed(tmp_path: Path) -> None:
    for number in range(MOST_COMPLAINTS + 3):
        (tmp_path / f"{number:02}.log").write_text(
            complaint(ConfigError(f"problem {number}")), encoding="utf-8"
        )
    assert sum(line.startswith("turnscale: ") for line in said(tmp_path, 0.0)) == MOST_COMPLAINTS
