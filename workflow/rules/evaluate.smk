# Every test benchmark, with the adapter that the tracking store holds for the run.


rule evaluate:
    input:
        unpack(lambda wildcards: old(PRODUCTS.evaluate_inputs(wildcards))),
        run="results/{scale}/{study}/runs/{family}/{model}/{cell}-{train}/seed-{seed}/run.json",
        spec=ancient("results/{scale}/specs/evaluation-{evaluation}.json"),
    output:
        "results/{scale}/{study}/runs/{family}/{model}/{cell}-{train}/seed-{seed}/evaluation-{evaluation}.json",
    log:
        "logs/{scale}/{study}/evaluate/{family}-{model}-{cell}-{train}-{evaluation}-seed-{seed}.log",
    benchmark:
        "logs/{scale}/{study}/evaluate/{family}-{model}-{cell}-{train}-{evaluation}-seed-{seed}.tsv"
    wildcard_constraints:
        family=PRODUCTS.unfinished("evaluate"),
    retries: 1
    conda:
        "../envs/turnscale.yaml"
    threads: THREADS
    resources:
        **GPU,
        mem_mb=MEMORY,
        runtime=MINUTES,
    shell:
        "turnscale job evaluate --run {input.run:q} --spec {input.spec:q} --base {input.base:q}"
        " --panels {input.panels:q} --out {output:q} > {log:q} 2>&1"
