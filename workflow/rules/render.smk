# Paper tables and figures, from the tidy tables. A change of a plot's code or style draws plots again, nothing else.

TIDY = PRODUCTS.tidy


localrules:
    table,
    figure,


rule table:
    input:
        TIDY,
        critic=lambda wildcards: PRODUCTS.diagnosis("tables", wildcards.name),
        published=PRODUCTS.published_files,
        code=PRODUCTS.sources("render/*.py"),
    output:
        multiext("paper_tables/{scale}/{name}", ".csv", ".md", ".tex"),
    log:
        "logs/{scale}/tables/{name}.log",
    wildcard_constraints:
        name=PRODUCTS.pattern("tables"),
    conda:
        "../envs/turnscale.yaml"
    params:
        study=PLAN.study.study,
        definition=lambda wildcards: PRODUCTS.definition_hash("tables", wildcards.name),
    shell:
        "turnscale job table {wildcards.name:q} --study {params.study:q} --scale {wildcards.scale:q} > {log:q} 2>&1"


rule figure:
    input:
        TIDY,
        critic=lambda wildcards: PRODUCTS.diagnosis("figures", wildcards.name),
        published=PRODUCTS.published_files,
        code=PRODUCTS.sources("render/*.py", "render/figures"),
    output:
        multiext("figures/{scale}/{name}", ".pdf", ".png", ".csv"),
    log:
        "logs/{scale}/figures/{name}.log",
    wildcard_constraints:
        name=PRODUCTS.pattern("figures"),
    conda:
        "../envs/turnscale.yaml"
    params:
        study=PLAN.study.study,
        definition=lambda wildcards: PRODUCTS.definition_hash("figures", wildcards.name),
    shell:
        "turnscale job figure {wildcards.name:q} --study {params.study:q} --scale {wildcards.scale:q} > {log:q} 2>&1"
