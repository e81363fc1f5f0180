# One job per run. Its inputs carry their content's hash in their names, so their times do not matter.


# Identities between methods hold before any of them is trained. The record's name holds the hash of the methods: a
# changed method repeats this check, and a rule that ran again under one name would hide the trainings after it.
rule gates:
    output:
        "results/{scale}/{study}/gates-{gates}.json",
    log:
        "logs/{scale}/{study}/gates-{gates}.log",
    wildcard_constraints:
        gates=PRODUCTS.methods_hash,
    conda:
        "../envs/turnscale.yaml"
    shell:
        "turnscale job gates --study {wildcards.study:q} --scale {wildcards.scale:q} --out {output:q} > {log:q} 2>&1"


# Only with pack > 1: several seeds of a cell in one process. What it found goes into the seeds' own records by the
# rule below, which also tries again alone what failed here; so a failed seed costs the others nothing.
rule train_pack:
    input:
        unpack(lambda wildcards: old(PRODUCTS.pack_inputs(wildcards))),
        tracking=ancient(TRACKING),
        gates=ancient(GATES),
    output:
        temp(
            "results/{scale}/{study}/packs/{family}/{model}/{cell}-{train}/seeds-{first}-{last}.json"
        ),
    log:
        "logs/{scale}/{study}/train/{family}-{model}-{cell}-{train}-seeds-{first}-{last}.log",
    benchmark:
        "logs/{scale}/{study}/train/{family}-{model}-{cell}-{train}-seeds-{first}-{last}.tsv"
    retries: 1
    conda:
        "../envs/turnscale.yaml"
    threads: THREADS
    resources:
        **GPU,
        mem_mb=MEMORY,
        runtime=MINUTES * PRODUCTS.pack,
    params:
        seeds=lambda wildcards: [
            f"--seed {seed}" for seed in PRODUCTS.packed(wildcards)
        ],
        critics=lambda wildcards, input: [
            f"--critic {path}" for path in input.get("critics", [])
        ],
    shell:
        "turnscale job train-pack --spec {input.spec:q} --study {wildcards.study:q} --scale {wildcards.scale:q}"
        " --family {wildcards.family:q} --model {wildcards.model:q} --cell {wildcards.cell:q}"
        " {params.seeds} --base {input.base:q} --panels {input.panels:q} {params.critics}"
        " --out {output:q} > {log:q} 2>&1"


rule train:
    input:
        unpack(lambda wildcards: old(PRODUCTS.train_inputs(wildcards))),
        tracking=ancient(TRACKING),
        gates=ancient(GATES),
    output:
        "results/{scale}/{study}/runs/{family}/{model}/{cell}-{train}/seed-{seed}/run.json",
    log:
        "logs/{scale}/{study}/train/{family}-{model}-{cell}-{train}-seed-{seed}.log",
    benchmark:
        "logs/{scale}/{study}/train/{family}-{model}-{cell}-{train}-seed-{seed}.tsv"
    wildcard_constraints:
        family=PRODUCTS.unfinished("train"),
    retries: 1
    conda:
        "../envs/turnscale.yaml"
    threads: THREADS
    resources:
        **GPU,
        mem_mb=MEMORY,
        runtime=MINUTES,
    params:
        critic=lambda wildcards, input: (
            f"--critic {input.critic}" if "critic" in input.keys() else ""
        ),
        pack=lambda wildcards, input: (
            f"--pack {input.pack}" if "pack" in input.keys() else ""
        ),
    shell:
        "turnscale job train --spec {input.spec:q} --study {wildcards.study:q} --scale {wildcards.scale:q}"
        " --family {wildcards.family:q} --model {wildcards.model:q} --cell {wildcards.cell:q}"
        " --seed {wildcards.seed} --base {input.base:q} --panels {input.panels:q} {params.critic} {params.pack}"
        " --out {output:q} > {log:q} 2>&1"
