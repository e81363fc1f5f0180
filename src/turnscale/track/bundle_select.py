"""Which runs and which files a study at a scale consists of, for bundles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnscale.config.load import read_yaml
from turnscale.errors import ConfigError
from turnscale.study import Plan, resolve
from turnscale.tabular.plan import is_tabular, resolve_tabular
from turnscale.track.bundle_check import CONFIG
from turnscale.track.records import base_key, critic_key, panels_key
from turnscale.workflow import Products

CONFIGS = Path("configs")


@dataclass(frozen=True)
class Selection:
    """What a bundle is made of.

    Attributes:
        keys: of its runs in the store.
        optional: of runs that a store may lack without anything being unfinished: task panels.
        files: configuration files and logs of looks, relative to the project folder.
    """

    study: str
    scale: str
    keys: tuple[str, ...]
    optional: tuple[str, ...]
    files: tuple[str, ...]


def select(
    study: str, scale: str, *, seeds: int | None = None, cells: Sequence[str] = (), root: Path = Path()
) -> Selection:
    """The runs of a study at a scale, and the files from which its tables are rebuilt.

    Args:
        study, scale: file names under configs/studies and configs/scales, without ending.
        seeds: number of seeds per cell, over the scale's.
        cells: names of cells; all if empty.
        root: the project folder.

    Raises:
        ConfigError: a configuration file that cannot be used, one outside configs/, or an unknown cell.
    """
    if is_tabular(study, root):
        plan = resolve_tabular(study, scale, seeds=seeds, root=root)
        _known(cells, plan.study.cells)
        keys = [run.key for run in plan.runs if not cells or run.cell in cells] + [plan.estimators_key]
        panels: list[str] = []
        files = {plan.study.claims, plan.study.published.file}
        rows = {cell.method for cell in (*plan.study.cells.values(), *plan.study.estimators.credits.values())}
    else:
        resolved = resolve(study, scale, seeds=seeds, root=root)
        _known(cells, [cell.cell for cell in resolved.cells])
        keys = list(_keys(resolved, cells))
        chosen = [cell for cell in resolved.cells if not cells or cell.cell in cells]
        panels = [panels_key(scale, cell.panels.value, cell.panels.hash) for cell in chosen]
        files = {*Products(resolved).ledgers, *Products(resolved).published_files}
        files |= {f"configs/models/{name}.yaml" for name in resolved.scale.models}
        families = resolved.scale.families or {}
        files |= {f"configs/families/{families.get(name, name)}.yaml" for name in resolved.study.families}
        rows = {cell.method for cell in resolved.study.cells.values()}
        looks = resolved.looks_path()
        if (root / looks).is_file():
            files.add(looks.as_posix())
    files |= {f"configs/studies/{study}.yaml", f"configs/scales/{scale}.yaml"}
    files |= {f"configs/methods/{name}.yaml" for name in _with_parents(rows, root)}
    for file in files:
        if not CONFIG.fullmatch(file):
            raise ConfigError(
                "lies elsewhere than a bundle can carry it.",
                file=file,
                remedy="put ledgers into configs/claims and published values into configs/published.",
            )
    return Selection(
        study, scale, tuple(dict.fromkeys(keys)), tuple(dict.fromkeys(panels)), tuple(sorted(files))
    )


def _keys(plan: Plan, cells: Sequence[str]) -> Iterator[str]:
    scale = plan.scale.scale
    chosen = [cell for cell in plan.cells if not cells or cell.cell in cells]
    for cell in chosen:
        yield base_key(scale, cell.base.value, cell.base.hash)
        for seed in cell.seeds:
            if cell.critic is not None:
                yield critic_key(scale, cell.critic.value, cell.critic.hash, seed)
    for run in plan.runs():
        if not cells or run.cell in cells:
            yield run.key


def _known(cells: Sequence[str], known: Iterable[str]) -> None:
    names = list(dict.fromkeys(known))
    for cell in cells:
        if cell not in names:
            raise ConfigError(
                f"'{cell}' is no cell of the study at this scale.",
                key="--cell",
                remedy=f"choose from: {', '.join(names)}.",
            )


def _with_parents(methods: Iterable[str], root: Path) -> set[str]:
    """Methods and every row that they extend."""
    found: set[str] = set()
    waiting = list(methods)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        parent = read_yaml(root / CONFIGS / "methods" / f"{name}.yaml").get("extends")
        if parent is not None:
            waiting.append(str(parent))
    return found
