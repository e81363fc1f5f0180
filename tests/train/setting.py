"""Settings for training tests: small panels, a barely warmed critic, and a base of one of two families.

``coin`` is so easy that a barely trained base succeeds; ``search`` is the project's own, with the smoke scale's base.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import tests.train.coin  # noqa: F401 - registers the family
from turnscale.envs.panels import Panels, load_panels, make_panels
from turnscale.envs.registry import load_family
from turnscale.methods import load_method
from turnscale.study import Run, Spec
from turnscale.train.base import make_base
from turnscale.train.warmup import warm_critic

PROJECT = Path(__file__).resolve().parents[2]
MODEL = {
    "name": "qwen3-tiny",
    "kind": "local",
    "architecture": {"hidden": 32, "layers": 2, "feed_forward": 48},
}


@dataclass(frozen=True)
class Setting:
    """Where the shared parts lie and how to name a run over them."""

    root: Path
    name: str = "coin"

    @property
    def family(self) -> dict[str, Any]:
        if self.name == "search":
            return yaml.safe_load((PROJECT / "configs" / "families" / "search.yaml").read_text())
        limits = {"max_turns": 4, "max_turn_tokens": 6, "max_tokens": 48}
        return {"name": "coin", "kind": "coin", "limits": limits, "parameters": {}}

    @property
    def base_spec(self) -> dict[str, Any]:
        if self.name == "search":
            base = yaml.safe_load((PROJECT / "configs" / "scales" / "smoke.yaml").read_text())["base"]
            model = yaml.safe_load((PROJECT / "configs" / "models" / "qwen3-tiny.yaml").read_text())
            return {"family": self.family, "model": model, "training": base, "threads": 1}
        training = {"steps": 20, "batch": 16, "lr": 3e-3, "report_tasks": 2, "report_attempts": 2}
        return {"family": self.family, "model": MODEL, "training": training, "threads": 1}

    @property
    def base(self) -> dict[str, Any]:
        return json.loads((self.root / "base.json").read_text())

    @property
    def panels(self) -> Panels:
        return load_panels(self.root / "panels.json")

    def critic(self, heads: int = 1) -> dict[str, Any]:
        """The warmed-up critic's record, made on first use."""
        path = self.root / f"critic-{heads}.json"
        if not path.exists():
            warm = {
                "batches": 2,
                "rollouts": 16,
                "epochs": 1,
                "lr": 3e-3,
                "minibatch": 16,
                "fresh_rollouts": 32,
            }
            spec = {"base": self.base_spec, "critic": warm, "heads": heads, "temperature": 1.0, "threads": 1}
            record = warm_critic(spec, self.base, self.panels, 0, self.root / f"critic-{heads}")
            path.write_text(json.dumps(record))
        return json.loads(path.read_text())

    def run(self, method: str, seed: int = 0, sets: dict[str, Any] | None = None, **training: Any) -> Run:
        """A run of ``method`` with 4 steps of 4 prompts x 4 rollouts unless ``training`` says otherwise."""
        chosen = load_method(method, sets or {}, directory=PROJECT / "configs" / "methods")
        settings = {
            "steps": 4,
            "prompts": 4,
            "group_size": 4,
            "lr": 4e-3,
            "critic_lr": 1e-3,
            "validate_every": 2,
        }
        settings |= {"validation_attempts": 1, "probe_rollouts": 8, "probe_checkpoints": 2} | training
        spec = Spec(
            "train",
            {
                "threads": 1,
                "base": self.base_spec,
                "method": chosen.resolved(),
                "training": settings if chosen.train else None,
            },
        )
        return Run("test", "test", self.name, "qwen3-tiny", method, method, seed, spec)


def make_setting(root: Path, name: str = "coin") -> Setting:
    """Make the base and the panels of a family under ``root``."""
    setting = Setting(root, name)
    family = load_family(setting.family)
    sizes = {"train": 32, "validation": 6, **dict.fromkeys(family.benchmarks, 4)}
    panels = make_panels(family, sizes)
    panels.save(root / "panels.json")
    record = make_base(setting.base_spec, root / "base", panels)
    (root / "base.json").write_text(json.dumps(record))
    return setting
