"""Studies at scales resolve to the same hashes, and errors name the file, the key and the remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.documents import Edit, change, write
from turnscale.config.hashing import canonical_json, digest
from turnscale.errors import ConfigError
from turnscale.planning import (
    comparisons,
    detectable,
    job_costs,
    raise_seeds,
    remaining_costs,
    status,
    wall_minutes,
)
from turnscale.study import Plan, resolve

PROJECT = Path(__file__).parents[1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the configuration, with a small scale ``tiny`` on the first local model."""
    shutil.copytree(PROJECT / "configs", tmp_path / "configs")
    scale = yaml.safe_load((PROJECT / "configs/scales/smoke.yaml").read_text(encoding="utf-8"))
    models = sorted((PROJECT / "configs/models").glob("*.yaml"))
    local = [path.stem for path in models if "kind: local" in path.read_text(encoding="utf-8")]
    scale |= {"scale": "tiny", "seeds": 3, "models": local[:1]}
    write(tmp_path / "configs/scales/tiny.yaml", scale)
    return tmp_path


def hashes(plan: Plan) -> dict[str, str]:
    return {cell.cell: cell.train.hash for cell in plan.cells}


def test_hashes_do_not_depend_on_order_comments_labels_seeds_or_runtime(root: Path) -> None:
    before = hashes(resolve("mpo", "tiny", root=root))
    study, scale = root / "configs/studies/mpo.yaml", root / "configs/scales/tiny.yaml"
    change(study, lambda s: s["cells"]["grpo"].update(label="Other", note="why"))
    change(study, lambda s: s.update(cells=dict(reversed(s["cells"].items()))))
    change(
        scale,
        lambda s: s.update(runtime={"checkpoint_every": 7, "job_minutes": 999}, seeds=9, description="x"),
    )
    scale.write_text("# comment\n" + scale.read_text(encoding="utf-8"), encoding="utf-8")
    assert hashes(resolve("mpo", "tiny", root=root)) == before


def test_a_changed_value_changes_its_own_cell_only(root: Path) -> None:
    before = hashes(resolve("mpo", "tiny", root=root))
    change(root / "configs/studies/mpo.yaml", lambda s: s["cells"]["mpo"].update(train={"lr": 0.001}))
    after = hashes(resolve("mpo", "tiny", root=root))
    assert {cell for cell in before if before[cell] != after[cell]} == {"mpo"}


def test_a_changed_panel_changes_every_cell_and_evaluation_none(root: Path) -> None:
    before = resolve("mpo", "tiny", root=root)
    scale = root / "configs/scales/tiny.yaml"
    change(scale, lambda s: s["eval"].update(attempts=s["eval"]["attempts"] + 2))
    evaluated = resolve("mpo", "tiny", root=root)
    assert hashes(evaluated) == hashes(before)
    assert all(
        a.evaluation.hash != b.evaluation.hash for a, b in zip(before.cells, evaluated.cells, strict=True)
    )
    change(scale, lambda s: s["panels"].update(train=s["panels"]["train"] + 1))
    assert not set(hashes(resolve("mpo", "tiny", root=root)).values()) & set(hashes(before).values())


def test_cells_with_one_critic_share_it_and_more_seeds_keep_the_first(root: Path) -> None:
    plan = resolve("mpo", "tiny", root=root)
    critics = {cell.critic.hash for cell in plan.cells if cell.critic is not None}
    assert len(critics) == 1
    more = resolve("mpo", "tiny", seeds=5, root=root)
    paths = {str(plan.run_path(cell, seed)) for cell in plan.cells for seed in cell.seeds}
    assert paths < {str(more.run_path(cell, seed)) for cell in more.cells for seed in cell.seeds}
    keys = [run.key for run in more.runs()]
    assert len(keys) == len(set(keys))


def test_specifications_are_files_named_by_their_content(root: Path) -> None:
    plan = resolve("mpo", "tiny", root=root)
    plan.write_specs()
    for spec in plan.specs():
        path = root / plan.spec_path(spec)
        assert path.name == f"{spec.kind}-{digest([spec.kind, json.loads(path.read_text())])}.json"
    assert not list((root / plan.results()).rglob("*.tmp"))


def test_every_study_resolves_at_every_scale_that_names_its_groups() -> None:
    found = 0
    for study in sorted((PROJECT / "configs/studies").glob("*.yaml")):
        for scale in sorted((PROJECT / "configs/scales").glob("*.yaml")):
            kinds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (study, scale)]
            if any(kind.get("kind") == "tabular" for kind in kinds):
                continue
            if set(kinds[1]["groups"]) <= set(kinds[0]["groups"]):
                assert resolve(study.stem, scale.stem, root=PROJECT).cells
                found += 1
    assert found


STUDY, SCALE = "configs/studies/mpo.yaml", "configs/scales/tiny.yaml"


@pytest.mark.parametrize(
    ("file", "edit", "named"),
    [
        (STUDY, lambda s: s.update(sed=1), ["sed", "unknown key"]),
        (
            STUDY,
            lambda s: s["cells"]["mpo"].update(metod="mpo"),
            ["cells.mpo.metod", "did you mean 'method'"],
        ),
        (STUDY, lambda s: s["cells"].update(x={"method": "no-such"}), []),
        (STUDY, lambda s: s["cells"]["mpo"].update(set={"credit.lamda": 0.5}), ["cells.mpo", "lamda"]),
        (STUDY, lambda s: s["cells"]["mpo"].update(train={"lr": -1}), ["cells.mpo.train.lr", "-1"]),
        (STUDY, lambda s: s["groups"]["main"].append("nobody"), ["nobody", "groups.main"]),
        (STUDY, lambda s: s["tables"]["mpo_main"].update(reference="nobody"), ["nobody"]),
        (STUDY, lambda s: s["tables"]["mpo_main"].update(metrics=["pass@1"]), ["pass@1"]),
        (STUDY, lambda s: s["cells"].update({"a; rm -rf x": {"method": "mpo"}}), ["a; rm -rf x"]),
        (STUDY, lambda s: s["cells"].update({"$(id)": {"method": "mpo"}}), ["$(id)"]),
        (STUDY, lambda s: s["cells"].update({"../up": {"method": "mpo"}}), ["../up"]),
        (SCALE, lambda s: s.update(groups=["mian"]), ["groups", "mian", "main"]),
        (SCALE, lambda s: s.update(models=["nothing"]), ["models", "nothing", "choose from"]),
        (SCALE, lambda s: s.update(seeds=0), ["seeds", "0"]),
        (SCALE, lambda s: s.update(seeds="three"), ["seeds", "three"]),
        (SCALE, lambda s: s["train"].update(lr=float("nan")), ["train.lr"]),
        (SCALE, lambda s: s["train"].update(stepps=3), ["train.stepps", "did you mean 'steps'"]),
        (SCALE, lambda s: s.update(scale="other"), ["scale", "other"]),
        (SCALE, lambda s: s.pop("base"), ["base", "required"]),
    ],
)
def test_wrong_configuration_names_file_key_and_remedy(
    root: Path, file: str, edit: Edit, named: list[str]
) -> None:
    change(root / file, edit)
    if file == STUDY and not named:  # the cell must be used to be looked up
        change(root / file, lambda s: s["groups"]["smoke"].append("x"))
        file, named = "configs/methods/no-such.yaml", ["no-such"]
    with pytest.raises(ConfigError) as caught:
        resolve("mpo", "tiny", root=root)
    text = str(caught.value)
    assert Path(file).name in text or Path(file).stem in text
    for part in named:
        assert part in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "content", ["", "[1, 2]", "a: [", "\tx: 1", "a: !!python/object:os.system {}", "{" * 400]
)
def test_files_that_are_not_yaml_mappings_are_refused(root: Path, content: str) -> None:
    (root / SCALE).write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tiny\.yaml"):
        resolve("mpo", "tiny", root=root)


def test_absent_and_binary_files_are_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="choose one of"):
        resolve("mpo", "nothing", root=root)
    (root / SCALE).write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="UTF-8"):
        resolve("mpo", "tiny", root=root)


@pytest.mark.parametrize("seeds", [0, -1, True, 1.5, "4"])
def test_a_wrong_number_of_seeds_is_refused(root: Path, seeds: Any) -> None:
    with pytest.raises(ConfigError, match="seeds"):
        resolve("mpo", "tiny", seeds=seeds, root=root)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(plain)
def test_hashes_survive_json_and_reordering(value: Any) -> None:
    assert digest(json.loads(canonical_json(value))) == digest(value)
    if isinstance(value, dict):
        assert digest(dict(reversed(value.items()))) == digest(value)


def test_costs_cover_every_record_once_and_shrink_as_records_appear(root: Path) -> None:
    plan = resolve("mpo", "tiny", root=root)
    costs = job_costs(plan)
    assert remaining_costs(plan) == costs
    assert wall_minutes(plan, costs, 1) == pytest.approx(sum(costs.values()) / 60)
    assert wall_minutes(plan, costs, 4) < wall_minutes(plan, costs, 1)
    cell = plan.cells[1]
    for path in (plan.run_path(cell, 0), plan.evaluation_path(cell, 0)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("{}")
    assert len(remaining_costs(plan)) == len(costs) - 2
    assert [(row.trained, row.evaluated) for row in status(plan)][1] == (1, 1)


def test_comparisons_are_those_of_the_tables(root: Path) -> None:
    plan = resolve("mpo", "tiny", root=root)
    pairs = [(name, cell.cell) for name, cell, reference in comparisons(plan) if reference.cell == "mpo"]
    assert ("mpo_main", "grpo") in pairs
    assert all(cell != "mpo" for _, cell in pairs)


def test_detectable_differences() -> None:
    assert detectable(1, 3, 0.03) is None
    assert detectable(None, None, 0.03) is None
    two = detectable(3, 3, 0.03)
    fixed = detectable(3, None, 0.03)
    assert two is not None and fixed is not None
    # Textbook: n = 17 per arm finds one standard deviation with 80 % power.
    assert detectable(17, 17, 1.0) == pytest.approx(0.99, abs=0.01)
    assert detectable(6, 6, 0.03) < two  # type: ignore[operator]


def test_seeds_are_raised_in_place(root: Path) -> None:
    path = root / SCALE
    text = "# how big\n" + path.read_text(encoding="utf-8").replace("seeds: 3\n", "seeds: 3   # a remark\n")
    path.write_text(text, encoding="utf-8")
    assert raise_seeds(path, 8) == 3
    assert path.read_text(encoding="utf-8") == text.replace("seeds: 3 ", "seeds: 8 ")
    with pytest.raises(ConfigError, match="8 already"):
        raise_seeds(path, 8)


def test_raising_seeds_keeps_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "scale.yaml"
    path.write_bytes(b"scale: s\r\nseeds: 3\r\nmodels: [m]\r\n")
    assert raise_seeds(path, 5) == 3
    assert path.read_bytes() == b"scale: s\r\nseeds: 5\r\nmodels: [m]\r\n"


@pytest.mark.parametrize("number", ["1_0", "0x10", "010", "2.0", "2e1"])
def test_raising_seeds_refuses_a_number_it_would_rewrite_in_part(tmp_path: Path, number: str) -> None:
    path = tmp_path / "scale.yaml"
    path.write_text(f"seeds: {number}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no single line"):
        raise_seeds(path, 30)
    assert path.read_text(encoding="utf-8") == f"seeds: {number}\n"


def test_a_slip_in_the_number_of_seeds_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="999999999999 seeds per cell"):
        resolve("mpo", "smoke", seeds=999_999_999_999)
