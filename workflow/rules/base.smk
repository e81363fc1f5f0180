# Once per scale: the tracking store, task panels, starting checkpoints and warmed-up critics. Machines with one store
# share them: what another has finished is taken from there.


localrules:
    tracking,
    panels,


# MLflow's first start is not safe in parallel, so this one job comes before all that log.
rule tracking:
    output:
        "results/{scale}/tracking.json",
    log:
        "logs/{scale}/tracking.log",
    conda:
        "../envs/turnscale.yaml"
    shell:
        "turnscale job tracking --out {output:q} > {log:q} 2>&1"


rule panels:
    input:
        spec=ancient("results/{scale}/specs/panels-{panels}.json"),
        tracking=ancient(TRACKING),
    output:
        "results/{scale}/panels/{family}-{panels}.json",
    log:
        "logs/{scale}/panels/{family}-{panels}.log",
    conda:
        "../envs/turnscale.yaml"
    shell:
        "turnscale job panels --spec {input.spec:q} --scale {wildcards.scale:q} --out {output:q} > {log:q} 2>&1"


rule base:
    input:
        unpack(lambda wildcards: old(PRODUCTS.base_inputs(wildcards))),
        spec=ancient("results/{scale}/specs/base-{base}.json"),
        tracking=ancient(TRACKING),
    output:
        "results/{scale}/base/{family}/{model}-{base}/base.json",
    log:
        "logs/{scale}/base/{family}-{model}-{base}.log",
    benchmark:
        "logs/{scale}/base/{family}-{model}-{base}.tsv"
    retries: 1
    conda:
        "../envs/turnscale.yaml"
    threads: THREADS
    resources:
        **GPU,
        mem_mb=MEMORY,
        runtime=MINUTES,
    shell:
        "turnscale job base --spec {input.spec:q} --panels {input.panels:q} --scale {wildcards.scale:q}"
        " --out {output:q} > {log:q} 2>&1"


rule critic:
    input:
        unpack(lambda wildcards: old(PRODUCTS.critic_inputs(wildcards))),
        spec=ancient("results/{scale}/specs/critic-{critic}.json"),
        tracking=ancient(TRACKING),
    output:
        "results/{scale}/critic/{family}/{model}-{critic}/seed-{seed}/critic.json",
    log:
        "logs/{scale}/critic/{family}-{model}-{critic}-seed-{seed}.log",
    benchmark:
        "logs/{scale}/critic/{family}-{model}-{critic}-seed-{seed}.tsv"
    wildcard_constraints:
        family=PRODUCTS.unfinished("critic"),
    retries: 1
    conda:
        "../envs/turnscale.yaml"
    threads: THREADS
    resources:
        **GPU,
        mem_mb=MEMORY,
        runtime=MINUTES,
    shell:
        "turnscale job critic --spec {input.spec:q} --base {input.base:q} --panels {input.panels:q}"
        " --scale {wildcards.scale:q} --seed {wildcards.seed} --out {output:q} > {log:q} 2>&1"
