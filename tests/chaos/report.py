"""The campaign's rows of ``docs/reliability.md``, written from the summary that is committed beside the benchmarks.

make test-chaos SUMMARY=benchmarks/chaos.json && python -m tests.chaos.report
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
SUMMARY = PROJECT / "benchmarks" / "chaos.json"
PAGE = PROJECT / "docs" / "reliability.md"
START, END = "<!-- campaign: written by tests/chaos/report.py -->\n", "<!-- end of campaign -->\n"


def rows(summary: Mapping[str, Any]) -> str:
    """The table of a campaign, a row for each kind of process."""
    kinds = summary["kills_by_kind"]
    phases = ", ".join(f"{count} {phase}" for phase, count in summary["trainers_killed"].items())
    writing = summary["trainers_killed_while_writing_a_checkpoint"]
    orphans = summary["snakemake_killed_with_jobs_at_work"]
    how = {
        "trainer": f"{phases}; {writing} while writing a checkpoint",
        "evaluator": "between its start and its last upload",
        "snakemake": f"{orphans} with jobs at work, which go on",
        "server": "while a job is at work; started again within seconds",
    }
    lost = "; ".join(summary["lost"]) or "nothing"
    lines = [
        "| fault | how injected | times injected | what was lost | command that repeats it |",
        "|---|---|---:|---|---|",
    ]
    for kind, count in kinds.items():
        name = {"snakemake": "Snakemake", "server": "the MLflow server"}.get(kind, f"a {kind}").replace(
            "a evaluator", "an evaluator"
        )
        lines.append(
            f"| SIGKILL of {name} | at a random point: {how[kind]} | {count} | {lost} | `make test-chaos` |"
        )
    stores = summary["kills_by_store"]
    lines += [
        "",
        f"Seed {summary['seed']}: {summary['kills']} kills in {summary['rounds']} rounds "
        f"({', '.join(f'{count} on {store}' for store, count in stores.items())}); the command was run "
        f"{summary['commands_run']} times, of which {summary['commands_that_failed']} ended early; "
        f"{summary['manual_steps']} manual steps; {summary['minutes']:.0f} minutes.",
    ]
    return "\n".join(lines) + "\n"


def page(text: str, summary: Mapping[str, Any]) -> str:
    """The page with the campaign's rows renewed."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + "\n" + rows(summary) + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), json.loads(SUMMARY.read_text(encoding="utf-8"))))
