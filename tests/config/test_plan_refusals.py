"""What a plan refuses before anything runs, in words that say where and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import Edit, change
from turnscale.config.references import few_attempts
from turnscale.errors import ConfigError
from turnscale.methods import load_method
from turnscale.study import load_study, resolve
from turnscale.tabular.plan import resolve_tabular

PROJECT = Path(__file__).parents[2]
STUDY, SCALE = "configs/studies/mpo.yaml", "configs/scales/smoke.yaml"
TEST = {"search-2hop": 3, "search-3hop": 4, "search-4hop": 5}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(PROJECT / "configs", tmp_path / "configs")
    return tmp_path


CASES: dict[str, tuple[str, Edit, str, str]] = {  # name: (file, edit, key, words)
    "no published file": (STUDY, lambda s: s["tables"]["mpo_main"]["published"].update(file="configs/gone.csv"),
                          "tables.mpo_main.published.file", "no such file"),
    "no ledger": (STUDY, lambda s: s.update(claims="configs/claims/gone.yaml"), "claims", "no such file"),
    "k above the attempts": (STUDY, lambda s: s["tables"]["mpo_main"].update(metrics=["pass_at_99"]),
                             "tables.mpo_main.metrics", "needs 99 attempts"),
    "model twice": (STUDY, lambda s: s["models"].append("qwen3-tiny"), "models", "named twice"),
    "family twice": (STUDY, lambda s: s.update(families=["search", "search"]), "families", "named twice"),
    "cell twice in a group": (STUDY, lambda s: s["groups"]["smoke"].append("mpo"), "groups.smoke", "named twice"),
    "metric twice": (STUDY, lambda s: s["tables"]["mpo_main"].update(metrics=["auc", "auc"]),
                     "tables.mpo_main.metrics", "named twice"),
    "group twice": (SCALE, lambda s: s.update(groups=["smoke", "smoke"]), "groups", "named twice"),
    "true for seeds": (SCALE, lambda s: s.update(seeds=True), "seeds", "integer"),
    "text for seeds": (SCALE, lambda s: s.update(seeds="2"), "seeds", "integer"),
    "text for a rate": (SCALE, lambda s: s["train"].update(lr="0.001"), "train.lr", "number"),
    "number for text": (STUDY, lambda s: s.update(title=3), "title", "string"),
    "absurd steps": (SCALE, lambda s: s["train"].update(steps=10**12), "train.steps", "less than"),
    "absurd panels": (SCALE, lambda s: s["panels"].update(train=10**12), "panels.train", "less than"),
    "panels of an unknown benchmark": (SCALE, lambda s: s["panels"].update(test={**TEST, "search-9hop": 3}),
                                       "panels.test.search-9hop", "the benchmarks are search-2hop, search-3hop"),
    "panels without a benchmark": (SCALE, lambda s: s["panels"].update(test={"search-2hop": 3}),
                                   "panels.test.search-3hop", "is absent"),
    "panels of no benchmark": (SCALE, lambda s: s["panels"].update(test={}), "panels.test.search-2hop", "is absent"),
    "no tasks of a benchmark": (SCALE, lambda s: s["panels"].update(test={**TEST, "search-4hop": 0}),
                                "panels.test.search-4hop", "greater than 0, got 0"),
    "text for tasks of a benchmark": (SCALE, lambda s: s["panels"].update(test={**TEST, "search-4hop": "3"}),
                                      "panels.test.search-4hop", "integer, got '3'"),
    "line break in a label": (STUDY, lambda s: s["cells"]["mpo"].update(label="a\nb"), "cells.mpo.label", "one line"),
    "reserved name of a study": (STUDY, lambda s: s.update(study="panels"), "", "panels"),
    "name of an audit": (STUDY, lambda s: s["tables"].update(audit_mpo=s["tables"]["mpo_main"]), "", "audit_mpo"),
    "infinite weight decay": (SCALE, lambda s: s["train"].update(weight_decay=float("inf")), "train.weight_decay",
                              "finite"),
    "NaN in a free value": (STUDY, lambda s: s["cells"]["mpo"].update(set={"credit.beta": float("nan")}),
                            "cells.mpo.set", "finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused_with_file_key_and_remedy(root: Path, name: str) -> None:
    file, edit, key, words = CASES[name]
    change(root / file, edit)
    with pytest.raises(ConfigError) as caught:
        resolve("mpo", "smoke", root=root)
    error = caught.value
    assert error.file and error.file.endswith(Path(file).name)
    assert key in (error.key or "")
    assert words in str(error)
    assert error.remedy
    assert str(error).count("Remedy") == 1
    assert "^" not in error.problem, "a regular expression is no explanation"


def test_a_size_for_each_benchmark_is_taken_as_written(root: Path) -> None:
    change(root / SCALE, lambda s: s["panels"].update(test=TEST))
    assert resolve("mpo", "smoke", root=root).scale.panels.test == TEST


def test_a_number_in_quotes_is_told_how_to_be_written_and_1e_3_is_a_number(root: Path) -> None:
    path = root / SCALE
    text = path.read_text(encoding="utf-8")
    line = next(
        line for line in text.splitlines() if line.strip().startswith("lr: ") and "critic" not in line
    )
    assert text.count(line) == 1
    before = resolve("mpo", "smoke", root=root).cells[1].train
    bare = line.split("lr:")[0] + "lr: 1e-3"
    path.write_text(text.replace(line, bare), encoding="utf-8")
    plain = resolve("mpo", "smoke", root=root).cells[1].train
    assert plain.value["training"]["lr"] == 0.001
    path.write_text(text.replace(line, bare.replace("1e-3", "0.001")), encoding="utf-8")
    assert resolve("mpo", "smoke", root=root).cells[1].train.hash == plain.hash != before.hash
    path.write_text(text.replace(line, bare.replace("1e-3", '"1e-3"')), encoding="utf-8")
    with pytest.raises(ConfigError, match="write it without quotes: 1e-3"):
        resolve("mpo", "smoke", root=root)


def test_k_above_half_the_attempts_is_a_warning(root: Path) -> None:
    plan = resolve("mpo", "smoke", root=root)
    attempts = plan.scale.eval.attempts
    assert few_attempts(plan.study, plan.scale.model_copy(
        update={"eval": plan.scale.eval.model_copy(update={"attempts": 1000})})) == []  # fmt: skip
    change(root / STUDY, lambda s: s["tables"]["mpo_main"].update(metrics=[f"pass_at_{attempts}"]))
    plan = resolve("mpo", "smoke", root=root)
    assert any(f"pass_at_{attempts}" in warning for warning in few_attempts(plan.study, plan.scale))


def test_an_unknown_method_names_study_and_cell(root: Path) -> None:
    change(root / STUDY, lambda s: s["cells"]["mpo"].update(method="mppo"))
    with pytest.raises(ConfigError) as caught:
        resolve("mpo", "smoke", root=root)
    assert caught.value.key == "cells.mpo.method"
    assert caught.value.file and caught.value.file.endswith("studies/mpo.yaml")
    assert "did you mean" in str(caught.value.remedy)


def test_a_wrong_override_names_its_key_and_has_one_remedy(root: Path) -> None:
    change(root / STUDY, lambda s: s["cells"]["mpo"].update(set={"credit.lamda": 0.5}))
    with pytest.raises(ConfigError) as caught:
        resolve("mpo", "smoke", root=root)
    assert caught.value.key == "cells.mpo.set.credit.lamda"
    assert str(caught.value).count("Remedy:") == 1
    assert ". Remedy:" in str(caught.value)


def test_a_broken_row_is_named_itself_even_under_an_override(root: Path) -> None:
    (root / "configs/methods/mpo.yaml").write_text("title: [\n", encoding="utf-8")
    change(root / STUDY, lambda s: s["cells"]["mpo"].update(set={"credit.lam": 0.5}))
    with pytest.raises(ConfigError, match=r"methods/mpo\.yaml: line"):
        resolve("mpo", "smoke", root=root)


def test_a_misspelt_key_is_named_before_a_missing_one(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "configs/methods", tmp_path / "methods")
    path = tmp_path / "methods/odd.yaml"
    path.write_text("titel: x\nsummary: y\ntrain: false\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_method("odd", directory=path.parent)
    assert caught.value.key == "titel"
    assert "did you mean 'title'" in str(caught.value.remedy)


def test_a_study_and_a_scale_of_different_kinds(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"scale of tabular studies.*quick"):
        resolve("mpo", "grouping5", root=root)
    with pytest.raises(ConfigError, match=r"scale of studies that train models.*grouping5"):
        resolve_tabular("grouping", "smoke", root=root)
    with pytest.raises(ConfigError, match="study of tabular policies"):
        load_study("grouping", root)


def test_a_broken_family_is_refused_when_the_study_is_planned(root: Path) -> None:
    change(root / "configs/families/search.yaml", lambda s: s["parameters"].update(train_hops=[99]))
    with pytest.raises(ConfigError, match=r"search\.yaml: parameters"):
        resolve("mpo", "smoke", root=root)


def turnscale(*arguments: str, cwd: Path, columns: int = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from turnscale.cli import main; main()", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "dumb"},
    )  # fmt: skip


def test_plans_at_80_columns_are_whole(root: Path) -> None:
    done = turnscale("plan", "mpo", "--scale", "quick", cwd=root, columns=80)
    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout
    for cell in resolve("mpo", "quick", root=root).cells:
        assert cell.train.hash in done.stdout


def test_text_in_brackets_is_no_markup(root: Path) -> None:
    change(root / SCALE, lambda s: s.update(description="[/bold] [red]x :smile:"))
    done = turnscale("plan", "mpo", "--scale", "smoke", cwd=root)
    assert done.returncode == 0, done.stderr
    assert "[/bold] [red]x :smile:" in done.stdout


def test_seeds_of_a_tabular_scale_are_raised(root: Path) -> None:
    done = turnscale("seeds", "add", "grouping", "--scale", "grouping5", "--to", "7", cwd=root)
    assert done.returncode == 0, done.stderr
    assert "seeds 5 -> 7" in done.stdout
    assert "seeds: 7" in (root / "configs/scales/grouping5.yaml").read_text(encoding="utf-8")
    done = turnscale("seeds", "add", "grouping", "--scale", "smoke", "--to", "7", cwd=root)
    assert done.returncode == 2
    assert "tabular" in done.stderr


def test_two_methods_with_equal_advantages_differ_where_it_is_said(root: Path) -> None:
    done = turnscale("methods", "diff", "mpo", "mpo-token-is", cwd=root)
    assert "the difference is in the ratio" in done.stdout


def test_hashes_of_the_shipped_studies() -> None:
    """Identities of runs that exist: a change of what is checked must not change them."""
    plan = resolve("mpo", "quick", root=PROJECT)
    assert {cell.cell: cell.train.hash for cell in plan.cells} == {
        "base": "039939b9", "grpo": "990eaee3", "gspo": "5636a7e3", "ppo": "5b99458b", "vapo": "007e5405",
        "mpo-token-is": "aed8d36a", "mpo": "dead8965",
    }  # fmt: skip
    tabular = resolve_tabular("grouping", "grouping5", root=PROJECT)
    assert [run.hash for run in tabular.runs][:2] == ["9d66b6f7", "1f0a80b4"]
    assert tabular.estimators_hash == "e06d40b3"


def test_a_broken_scale_is_no_choice_and_is_named_when_it_is_used(root: Path) -> None:
    (root / "configs/scales/grouping200.yaml").write_text("scale: [\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"Remedy: use one of: grouping5\."):
        resolve_tabular("grouping", "quick", root=root)
    with pytest.raises(ConfigError, match=r"grouping200\.yaml: line"):
        resolve_tabular("grouping", "grouping200", root=root)
