# What the critics' values do over turns, beside simulated critics and published numbers. Reads one collected table.


localrules:
    diagnose,


rule diagnose:
    input:
        critic_values=rules.collect.output.critic_values,
        published=PRODUCTS.published_files,
        code=PRODUCTS.sources("diagnose", "stats"),
    output:
        statistics="results/{scale}/{study}/tables/critic_statistics.csv",
        trajectories="results/{scale}/{study}/tables/critic_trajectories.parquet",
    log:
        "logs/{scale}/{study}/diagnose.log",
    conda:
        "../envs/turnscale.yaml"
    threads: workflow.cores or 1
    params:
        definition=PRODUCTS.study_hash,
    shell:
        "turnscale job diagnose --study {wildcards.study:q} --scale {wildcards.scale:q} --workers {threads} > {log:q} 2>&1"
