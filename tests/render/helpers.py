"""An invented study on disk, and one whose names try to be markup."""

from pathlib import Path
from types import ModuleType
from typing import Any

from turnscale.config.schema import Study
from turnscale.estimates import write_estimates
from turnscale.study import Plan

HOSTILE = "a_b & <script> \\input{x} $|"


def build(synthetic: ModuleType, folder: Path, **options: Any) -> Plan:
    """Write the tables, estimates and comparisons of an invented plan; options go to either maker."""
    plan_options = {key: options.pop(key) for key in ("seeds", "models", "cells", "study") if key in options}
    plan = synthetic.make_plan(**plan_options)
    synthetic.make_tables(plan, folder, tasks=20, attempts=8, steps=20, **options)
    write_estimates(plan, folder)
    return plan


def hostile_study(study: Study) -> Study:
    """The study with a hostile title, label and figure titles."""
    data = study.model_dump(mode="json")
    data["title"] = data["tables"]["mpo_main"]["title"] = HOSTILE
    data["cells"]["grpo"]["label"] = HOSTILE
    data["cells"]["ppo"]["label"] = "a label that goes on and on, as labels should not"
    for figure in data["figures"].values():
        figure["title"] = HOSTILE
    return Study.model_validate(data)
