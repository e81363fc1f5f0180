# Paper tables and figures, from the tidy tables. A change of a plot's code or style draws plots again, nothing else.
#
# All tables are one job and all figures another: what a process needs to start is more than what a product needs, and
# both read the same files. A product that cannot be made is named in the job's log; the profile has the others kept.

TIDY = PRODUCTS.tidy


localrules:
    render_tables,
    render_figures,


rule render_tables:
    input:
        TIDY,
        critic=PRODUCTS.diagnosis("tables"),
        published=PRODUCTS.published_files,
        code=PRODUCTS.sources("render/*.py"),
    output:
        TABLES,
    log:
        f"logs/{PLAN.scale.scale}/{PLAN.study.study}/tables.log",
    conda:
        "../envs/turnscale.yaml"
    params:
        study=PLAN.study.study,
        scale=PLAN.scale.scale,
        definition=PRODUCTS.definition_hash("tables"),
    shell:
        "turnscale job tables --study {params.study:q} --scale {params.scale:q} > {log:q} 2>&1"


rule render_figures:
    input:
        TIDY,
        critic=PRODUCTS.diagnosis("figures"),
        published=PRODUCTS.published_files,
        code=PRODUCTS.sources("render/*.py", "render/figures"),
    output:
        FIGURES,
    log:
        f"logs/{PLAN.scale.scale}/{PLAN.study.study}/figures.log",
    conda:
        "../envs/turnscale.yaml"
    params:
        study=PLAN.study.study,
        scale=PLAN.scale.scale,
        definition=PRODUCTS.definition_hash("figures"),
    shell:
        "turnscale job figures --study {params.study:q} --scale {params.scale:q} > {log:q} 2>&1"
