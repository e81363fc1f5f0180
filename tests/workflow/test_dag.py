"""What a change of configuration schedules: exactly what depends on it."""

from __future__ import annotations

import os
import shutil
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from tests.workflow.conftest import Project
from turnscale.workflow import Products


def trained(project: Project) -> int:
    """Trained cells of the tiny study."""
    return sum(cell.trains for cell in project.plan().cells)


def test_a_fresh_project_schedules_every_job_once(project: Project) -> None:
    plan = project.plan()
    jobs = project.dry_run()
    assert jobs["train"] == jobs["evaluate"] == len(plan.runs())
    assert jobs["tracking"] == jobs["gates"] == jobs["panels"] == jobs["base"] == jobs["collect"] == 1
    assert jobs["critic"] == 2, "the critic-based cells share one critic per seed"
    assert jobs["diagnose"] == 1
    assert jobs["render_tables"] == jobs["render_figures"] == 1, "all products of a kind in one process"
    assert "reason: Missing output files" in project.said


def test_finished_runs_and_comments_and_labels_train_nothing(project: Project) -> None:
    project.finish(project.plan())
    for file in ("configs/studies/mpo.yaml", "configs/scales/tiny.yaml"):
        path = project.root / file
        path.write_text("# Another comment.\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    project.edit("configs/studies/mpo.yaml", "label: GRPO}", "label: Group baseline}")
    jobs = project.dry_run()
    assert not jobs.keys() & {"train", "evaluate", "critic", "base", "panels"}, project.said


def test_one_more_seed_schedules_one_training_per_trained_cell(project: Project) -> None:
    project.finish(project.plan())
    jobs = project.dry_run("seeds=3")
    assert jobs["train"] == jobs["evaluate"] == trained(project)
    assert jobs["critic"] == 1
    assert jobs.keys() & {"base", "panels", "tracking"} == set()
    assert all(jobs[rule] for rule in ("collect", "estimates"))


def test_one_changed_value_of_one_cell_schedules_exactly_its_seeds(project: Project) -> None:
    project.finish(project.plan())
    project.edit(
        "configs/studies/mpo.yaml",
        "mpo: {method: mpo, label: MPO}",
        "mpo: {method: mpo, label: MPO, train: {lr: 1.0e-3}}",
    )
    jobs = project.dry_run()
    assert jobs["train"] == jobs["evaluate"] == 2
    assert not jobs.keys() & {"critic", "base"}
    assert project.said.count("cell=mpo,") == 4, "two trainings and two evaluations, all of the changed cell"


def test_more_attempts_evaluate_again_and_train_nothing(project: Project) -> None:
    project.finish(project.plan())
    project.edit("configs/scales/tiny.yaml", "  attempts: 6\n", "  attempts: 8\n")
    jobs = project.dry_run()
    assert jobs["evaluate"] == len(project.plan().runs())
    assert not jobs.keys() & {"train", "critic", "base"}


def test_lost_metadata_and_newer_inputs_train_nothing(project: Project) -> None:
    plan = project.plan()
    project.finish(plan)
    shutil.rmtree(project.root / ".snakemake", ignore_errors=True)
    for cell in plan.cells:
        for path in (plan.base_path(cell), plan.panels_path(cell), plan.results() / "tracking.json"):
            (project.root / path).touch()
    assert not project.dry_run().keys() & {"train", "evaluate", "critic"}


def test_a_lost_record_is_trained_again_although_the_tables_are_there(project: Project) -> None:
    plan = project.plan()
    project.finish(plan)
    (project.root / plan.run_path(plan.cells[1], 0)).unlink()
    jobs = project.dry_run()
    assert jobs["train"] == jobs["evaluate"] == 1


def test_a_mark_of_a_killed_workflow_hides_no_missing_run(project: Project) -> None:
    plan = project.plan()
    project.finish(plan)
    cell = next(cell for cell in plan.cells if cell.critic is not None)
    for path in (plan.run_path(cell, 0), plan.evaluation_path(cell, 0)):
        (project.root / path).unlink()
    mark = (
        project.root
        / ".snakemake/incomplete"
        / urlsafe_b64encode(str(plan.base_path(cell)).encode()).decode()
    )
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text("{}")
    jobs = project.dry_run()
    assert jobs["train"] == jobs["evaluate"] == jobs["collect"] == 1 and "base" not in jobs


def test_partial_tables_train_nothing(project: Project) -> None:
    plan = project.plan()
    project.finish(plan)
    (project.root / plan.run_path(plan.cells[1], 0)).unlink()
    (project.root / plan.results() / "mpo/tables/outcomes.parquet").unlink()
    jobs = project.dry_run("partial=true")
    assert jobs["collect"] == jobs["estimates"] == 1
    assert not jobs.keys() & {"train", "evaluate", "critic", "base"}


@pytest.mark.parametrize(
    ("target", "rule"),
    [("paper_tables/tiny/mpo_beta.md", "render_tables"), ("figures/tiny/mpo_gains.png", "render_figures")],
)
def test_a_single_product_is_a_target(project: Project, target: str, rule: str) -> None:
    plan = project.plan()
    project.finish(plan)
    assert not {"render_tables", "render_figures"} & project.dry_run(targets=[target]).keys()
    (project.root / target).unlink()
    jobs = project.dry_run(targets=[target])
    assert set(jobs) == {rule}, project.said


def test_a_changed_definition_renders_its_kind_alone(project: Project) -> None:
    project.finish(project.plan())
    products = {"render_tables", "render_figures"}
    project.claim(*products)
    assert not project.dry_run().keys() & products
    study = project.root / "configs/studies/mpo.yaml"
    before = study.read_text(encoding="utf-8")
    entries = project.plan().study.tables["mpo_beta"].title, project.plan().study.figures["mpo_gains"].title
    for title, rule in zip(entries, ("render_tables", "render_figures"), strict=True):
        project.edit("configs/studies/mpo.yaml", title, f"{title}, again")
        assert project.dry_run().keys() & products == {rule}, project.said
        study.write_text(before, encoding="utf-8")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("mpo: {method: mpo, label: MPO}", "mpo: {methd: mpo, label: MPO}"), "did you mean 'method'?"),
        (("main: [base, grpo,", "main: [bass, grpo,"), "names the cell 'bass'"),
    ],
)
def test_a_wrong_study_is_one_clear_line(project: Project, edit: tuple[str, str], said: str) -> None:
    project.edit("configs/studies/mpo.yaml", *edit)
    done = project.snakemake("-n", "--config", "scale=tiny")
    assert done.returncode == 2
    text = done.stdout + done.stderr
    assert said in text
    assert "configs/studies/mpo.yaml" in text
    assert "Traceback" not in text


def test_no_shell_text_holds_a_value(project: Project) -> None:
    """A changed value must not change the text of a command, or every job of the rule would run again."""
    for path in sorted(Path(project.root / "workflow/rules").glob("*.smk")):
        text = path.read_text(encoding="utf-8")
        for block in text.split("shell:")[1:]:
            command = block.split("\n\n\n")[0]
            assert 'f"' not in command
            assert "PLAN" not in command
            assert "config[" not in command


def test_lost_inputs_of_finished_runs_train_nothing_and_one_more_seed_only_itself(project: Project) -> None:
    """Without this a rebuilt panel, base or gate would train every finished run that reads it again."""
    plan = project.plan()
    project.finish(plan)
    for cell in plan.cells:
        for path in (plan.base_path(cell), plan.panels_path(cell)):
            (project.root / path).unlink(missing_ok=True)
    for path in (plan.results() / "tracking.json", Products(plan).gates):
        (project.root / path).unlink()
    assert not project.dry_run().keys() & {"train", "evaluate", "critic", "base", "panels"}
    jobs = project.dry_run("seeds=3")
    assert jobs["train"] == jobs["evaluate"] == trained(project)
    assert jobs["critic"] == jobs["base"] == jobs["panels"] == jobs["gates"] == jobs["tracking"] == 1


def test_a_run_made_again_is_evaluated_again(project: Project) -> None:
    plan = project.plan()
    project.finish(plan)
    run = project.root / plan.run_path(plan.cells[1], 0)
    later = run.stat().st_mtime + 100
    os.utime(run, (later, later))
    jobs = project.dry_run()
    assert jobs["evaluate"] == 1
    assert "train" not in jobs


def test_an_edited_command_trains_nothing_again(project: Project) -> None:
    project.finish(project.plan())
    project.edit("workflow/rules/train.smk", '"turnscale job train --spec', '"turnscale  job train --spec')
    assert not project.dry_run().keys() & {"train", "evaluate", "critic"}


def test_a_changed_method_value_trains_that_cell_on_the_first_run(project: Project) -> None:
    project.finish(project.plan())
    project.edit(
        "configs/studies/mpo.yaml",
        "mpo: {method: mpo, label: MPO}",
        "mpo: {method: mpo, set: {credit.lam: 0.7}}",
    )
    jobs = project.dry_run()
    assert jobs["train"] == jobs["evaluate"] == 2
    assert jobs["gates"] == 1
    assert "critic" not in jobs


def test_packed_seeds_share_a_job_and_keep_their_own_records(project: Project) -> None:
    plan = project.plan()
    jobs = project.dry_run("pack=2")
    assert jobs["train_pack"] == trained(project)
    assert jobs["train"] == jobs["evaluate"] == len(plan.runs())
    assert "--seed 0 --seed 1" in project.snakemake("-n", "-p", "--config", "scale=tiny", "pack=2").stdout


def test_packing_changes_no_identity_and_reruns_nothing(project: Project) -> None:
    plan = project.plan()
    project.finish(plan)
    assert not project.dry_run("pack=2").keys() & {"train", "train_pack", "evaluate", "critic"}
    project.edit("configs/scales/tiny.yaml", "checkpoint_every: 1", "checkpoint_every: 1\n  pack: 5")
    assert [run.key for run in project.plan().runs()] == [run.key for run in plan.runs()]
    assert not project.dry_run().keys() & {"train", "train_pack", "evaluate", "critic"}


def test_more_seeds_of_a_packed_study_train_the_new_ones_only(project: Project) -> None:
    project.finish(project.plan())
    jobs = project.dry_run("pack=5", "seeds=4")
    assert jobs["train_pack"] == trained(project)
    assert jobs["train"] == jobs["evaluate"] == 2 * trained(project)
    assert jobs["critic"] == 2
    said = project.snakemake("-n", "-p", "--config", "scale=tiny", "pack=5", "seeds=4").stdout
    assert "--seed 2 --seed 3" in said and "--seed 0" not in said


def test_a_pack_must_be_a_whole_number(project: Project) -> None:
    done = project.snakemake("-n", "--config", "scale=tiny", "pack=some")
    assert done.returncode == 2
    assert "pack: must be a whole number from 1 to 10000" in done.stdout + done.stderr
