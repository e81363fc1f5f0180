# Studies of tabular policies (grouping): blocks of seeds instead of checkpoints, the same store, tables and audit.
from snakemake.shell import shell as bash
from turnscale.tabular.plan import FIGURES as FIGURE_NAMES, TABLES as TABLE_NAMES
from turnscale.tabular.plan import resolve_tabular, summary_after, summary_before
from turnscale.workflow import Products, check_options, refusing

config.setdefault("scale", "grouping5")
with refusing():
    PARTIAL = check_options(config, tabular=True)
    PLAN = resolve_tabular(
        str(config["study"]), str(config["scale"]), seeds=config.get("seeds")
    )

RECORDS = {
    str(run.path): run
    for run in PLAN.runs
    if not PARTIAL or (PLAN.root / run.path).exists()
}
RUNS = [*RECORDS, str(PLAN.estimators_path)]
EVALUATIONS = []
SHARE = RUNS
TIDY = [
    str(PLAN.tables_dir / name)
    for name in (
        "outcomes.parquet",
        "seeds.parquet",
        "metrics.parquet",
        "survivorship.csv",
        "estimators.csv",
        "estimates.csv",
        "comparisons.csv",
        "verdicts.csv",
    )
]
TABLES = PLAN.tables
FIGURES = PLAN.figures
AUDITS = PLAN.audits

SELECT = f"--study {PLAN.study.study} --scale {PLAN.scale.scale}"
SEEDED = f"{SELECT} --seeds {PLAN.seeds}"
LOGS = f"logs/{PLAN.scale.scale}/{PLAN.study.study}"
TRACKING = f"results/{PLAN.scale.scale}/tracking.json"


bash.prefix(
    "set -euo pipefail; export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPLBACKEND=Agg; "
)


localrules:
    tracking,
    tabular_collect,
    tabular_results,
    tabular_table,
    tabular_figure,
    tabular_audit,


rule tracking:
    output:
        TRACKING,
    log:
        f"{LOGS}/tracking.log",
    conda:
        "../envs/turnscale.yaml"
    shell:
        "turnscale job tracking --out {output:q} > {log:q} 2>&1"


rule tabular_block:
    input:
        tracking=ancient(TRACKING),
    output:
        "results/{scale}/{study}/runs/{family}/{model}/{cell}/{block}/run.json",
    log:
        "logs/{scale}/{study}/{family}-{model}-{cell}-{block}.log",
    retries: 1
    conda:
        "../envs/turnscale.yaml"
    params:
        select=SELECT,
    shell:
        "turnscale job tabular block {params.select} --out {output:q} > {log:q} 2>&1"


rule tabular_estimators:
    input:
        tracking=ancient(TRACKING),
    output:
        str(PLAN.estimators_path),
    log:
        f"{LOGS}/estimators.log",
    retries: 1
    conda:
        "../envs/turnscale.yaml"
    params:
        select=SELECT,
    shell:
        "turnscale job tabular estimators {params.select} --out {output:q} > {log:q} 2>&1"


rule tabular_collect:
    input:
        RUNS,
    output:
        TIDY[:5],
    log:
        f"{LOGS}/collect.log",
    conda:
        "../envs/turnscale.yaml"
    params:
        select=SEEDED,
        partial="--partial" if PARTIAL else "--no-partial",
    shell:
        "turnscale job tabular collect {params.select} {params.partial} > {log:q} 2>&1"


rule tabular_results:
    input:
        TIDY[:5],
        published=PLAN.study.published.file,
        code=Products.sources("tabular/results.py", "stats"),
    output:
        TIDY[5:],
    log:
        f"{LOGS}/results.log",
    conda:
        "../envs/turnscale.yaml"
    params:
        select=SEEDED,
        study=PLAN.study.model_dump_json(),
    shell:
        "turnscale job tabular results {params.select} > {log:q} 2>&1"


rule tabular_table:
    input:
        TIDY,
        code=Products.sources("tabular/report.py", "render/*.py"),
    output:
        multiext("paper_tables/{scale}/{name}", ".csv", ".md", ".tex"),
    log:
        "logs/{scale}/tables/{name}.log",
    wildcard_constraints:
        name="|".join(TABLE_NAMES),
    conda:
        "../envs/turnscale.yaml"
    params:
        select=SELECT,
        study=PLAN.study.model_dump_json(),
    shell:
        "turnscale job tabular table {wildcards.name:q} {params.select} > {log:q} 2>&1"


rule tabular_figure:
    input:
        TIDY,
        code=Products.sources("tabular/figures.py", "render/*.py"),
    output:
        multiext("figures/{scale}/{name}", ".pdf", ".png", ".csv"),
    log:
        "logs/{scale}/figures/{name}.log",
    wildcard_constraints:
        name="|".join(FIGURE_NAMES),
    conda:
        "../envs/turnscale.yaml"
    params:
        select=SELECT,
        study=PLAN.study.model_dump_json(),
    shell:
        "turnscale job tabular figure {wildcards.name:q} {params.select} > {log:q} 2>&1"


rule tabular_audit:
    input:
        ledger=PLAN.study.claims,
        comparisons=str(PLAN.tables_dir / "comparisons.csv"),
        code=Products.sources("audit", "stats"),
    output:
        markdown=AUDITS[0],
        latex=AUDITS[1],
        csv=AUDITS[2],
        json=AUDITS[3],
        plot=AUDITS[4:],
    log:
        f"{LOGS}/audit.log",
    conda:
        "../envs/turnscale.yaml"
    shell:
        "turnscale audit {input.ledger:q} --comparisons {input.comparisons:q}"
        " --out $(dirname {output.csv:q}) --figures $(dirname {output.plot[0]:q}) > {log:q} 2>&1"
