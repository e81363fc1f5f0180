"""All gates of a study: what must hold before any of its runs may train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnscale.config.hashing import digest
from turnscale.envs.panels import Panels, load_panels, make_panels, split_sizes
from turnscale.envs.registry import load_family
from turnscale.gates.disjoint import disjoint
from turnscale.gates.identities import GateResult, run_identity_gates
from turnscale.gates.inert import inert_knobs
from turnscale.gates.probe import lr_zero_probe
from turnscale.methods import load_method
from turnscale.study import Plan, ResolvedCell, Run, Spec
from turnscale.train.base import make_base
from turnscale.train.warmup import warm_critic

PROBE_PANELS = {"train": 8, "validation": 1}
PROBE_PROMPTS = 4
PROBE_BASE = {"steps": 2, "batch": 4, "report_tasks": 1, "report_attempts": 1}
PROBE_CRITIC = {"batches": 1, "rollouts": 4, "epochs": 1, "minibatch": 4, "fresh_rollouts": 4}


def study_gates(plan: Plan, work: Path) -> Iterator[GateResult]:
    """Identities between methods, knobs that do nothing, disjoint panels, and the probe with learning rate 0.

    Args:
        plan: the study at its scale.
        work: an empty folder for the probe's own small bases and critics.
    """
    methods = plan.root / "configs" / "methods"
    yield from run_identity_gates(directory=methods)
    yield from knob_gates(plan)
    for cell in {cell.panels.hash: cell for cell in plan.cells}.values():
        yield disjoint(panels_of(plan, cell))
    yield from probes(plan, work)


def knob_gates(plan: Plan) -> Iterator[GateResult]:
    """One gate per cell that trains: it turns no knob that does nothing, and its row declares those it has."""
    methods = plan.root / "configs" / "methods"
    for name in dict.fromkeys(cell.cell for cell in plan.cells if cell.trains):
        cell = plan.study.cells[name]
        declared = set(load_method(cell.method, directory=methods).inert)
        still = set(inert_knobs(cell.method, directory=methods, overrides=dict(cell.set)))
        turned = {
            key for key in still for chosen in cell.set if key == chosen or key.startswith(f"{chosen}.")
        }
        undeclared = set() if cell.set else still - declared
        wrong = sorted(turned | undeclared)
        found = f": {', '.join(wrong)}" if wrong else ""
        yield GateResult(
            f"knobs/{name}",
            not wrong,
            float(len(wrong)),
            0.0,
            f"values set by the cell and undeclared parameters of {cell.method} that change nothing{found}",
        )


def panels_of(plan: Plan, cell: ResolvedCell) -> Panels:
    """The cell's panels: those frozen on disk, checked against the family, or frozen now if there are none yet."""
    family = load_family(cell.panels.value["family"])
    path = plan.root / plan.panels_path(cell)
    if path.exists():
        return load_panels(path, family)
    return make_panels(family, split_sizes(cell.panels.value["panels"], family.benchmarks))


def probes(plan: Plan, work: Path) -> Iterator[GateResult]:
    """The probe for each distinct method of the study, family and model.

    A local model's weights are drawn and hardly trained: the probe compares paths through the same weights, whatever
    they are. A given checkpoint is used as it is.
    """
    bases: dict[str, dict[str, Any]] = {}
    critics: dict[str, dict[str, Any]] = {}
    done: set[str] = set()
    for cell in plan.cells:
        if not cell.trains or cell.train.hash in done:
            continue
        done.add(cell.train.hash)
        spec = dict(cell.train.value)
        base = {**spec["base"]}
        if base["training"] is not None:
            base["training"] = base["training"] | PROBE_BASE
        spec["base"] = base
        spec["training"] = spec["training"] | {"prompts": min(PROBE_PROMPTS, spec["training"]["prompts"])}
        family = load_family(base["family"])
        panels = make_panels(family, PROBE_PANELS | dict.fromkeys(family.benchmarks, 1))
        key = digest(base)
        if key not in bases:
            bases[key] = make_base(base, work / key, panels)
        warm = None
        if cell.critic is not None:
            asked = {
                **cell.critic.value,
                "base": base,
                "critic": cell.critic.value["critic"] | PROBE_CRITIC,
            }
            name = digest(asked)
            if name not in critics:
                critics[name] = warm_critic(asked, bases[key], panels, 0, work / name)
            warm = critics[name]
        run = Run(
            plan.study.study,
            plan.scale.scale,
            cell.family,
            cell.model,
            cell.cell,
            cell.method_name,
            0,
            Spec("train", spec),
        )
        yield from lr_zero_probe(run, bases[key], panels, warm)
