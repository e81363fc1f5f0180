# Finished runs -> tidy tables -> estimates and comparisons. Everything from here on reads tables only.


localrules:
    collect,
    estimates,


rule collect:
    input:
        runs=RUNS,
        evaluations=EVALUATIONS,
    output:
        outcomes="results/{scale}/{study}/tables/outcomes.parquet",
        metrics="results/{scale}/{study}/tables/metrics.parquet",
        critic_values="results/{scale}/{study}/tables/critic_values.parquet",
        survivorship="results/{scale}/{study}/tables/survivorship.csv",
    log:
        "logs/{scale}/{study}/collect.log",
    conda:
        "../envs/turnscale.yaml"
    params:
        seeds=PRODUCTS.seeds,
        partial="--partial" if PRODUCTS.partial else "--no-partial",
        cells=PRODUCTS.cells_hash,
    shell:
        "turnscale job collect --study {wildcards.study:q} --scale {wildcards.scale:q} --seeds {params.seeds}"
        " {params.partial} --out-dir $(dirname {output.outcomes:q}) > {log:q} 2>&1"


rule estimates:
    input:
        rules.collect.output,
        published=PRODUCTS.published_files,
        code=PRODUCTS.sources(
            "stats", "estimates", "audit/looks*.py", "audit/adherence*.py"
        ),
    output:
        estimates="results/{scale}/{study}/tables/estimates.csv",
        comparisons="results/{scale}/{study}/tables/comparisons.csv",
        looks="results/{scale}/{study}/tables/looks.csv",
    log:
        "logs/{scale}/{study}/estimates.log",
    conda:
        "../envs/turnscale.yaml"
    params:
        seeds=PRODUCTS.seeds,
        definition=PRODUCTS.study_hash,
    shell:
        "turnscale job estimates --study {wildcards.study:q} --scale {wildcards.scale:q} --seeds {params.seeds}"
        " > {log:q} 2>&1"
