# Train, evaluate, estimate and render one study at one scale.
#
#   snakemake --config study=mpo scale=quick seeds=5
#   snakemake -n                      what would run, and why
#   snakemake tables figures --config partial=true    from finished runs only; trains nothing
#   snakemake runs --config share=2/3                 the second of three machines' runs; no tables
#
# What to run is decided in Python (turnscale.study.resolve) when this file is read; the rules only say how.
from snakemake.utils import min_version
from turnscale.tabular.plan import is_tabular
from turnscale.workdir import stop_on_sigterm
from turnscale.workflow import refusing

min_version("9.10")


config.setdefault("study", "mpo")

with refusing():
    TABULAR = is_tabular(str(config["study"]))

if TABULAR:

    include: "workflow/rules/grouping.smk"

else:

    include: "workflow/rules/common.smk"
    include: "workflow/rules/base.smk"
    include: "workflow/rules/train.smk"
    include: "workflow/rules/evaluate.smk"
    include: "workflow/rules/estimate.smk"
    include: "workflow/rules/diagnose.smk"
    include: "workflow/rules/render.smk"
    include: "workflow/rules/audit.smk"


localrules:
    all,
    runs,
    tables,
    figures,


# The records stand here themselves, so that a missing run is seen even when Snakemake's own metadata is lost.
rule all:
    default_target: True
    input:
        RUNS,
        EVALUATIONS,
        TIDY,
        TABLES,
        FIGURES,
        AUDITS,


rule runs:
    input:
        SHARE,


rule tables:
    input:
        TIDY,
        TABLES,
        AUDITS,


rule figures:
    input:
        TIDY,
        FIGURES,
        AUDITS,


onstart:
    stop_on_sigterm()
    print(summary_before(PLAN, workflow.cores or 1), flush=True)


onsuccess:
    print(summary_after(PLAN), flush=True)
