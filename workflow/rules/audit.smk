# The study's claims ledger, audited, with the local differences beside the published ones.


localrules:
    audit,


rule audit:
    input:
        ledger=PRODUCTS.ledgers,
        comparisons=rules.estimates.output.comparisons,
        code=PRODUCTS.sources("audit", "stats"),
    output:
        markdown="paper_tables/{scale}/audit_{study}.md",
        latex="paper_tables/{scale}/audit_{study}.tex",
        csv="paper_tables/{scale}/audit_{study}.csv",
        json="paper_tables/{scale}/audit_{study}.json",
        plot=multiext("figures/{scale}/audit_{study}", ".pdf", ".png"),
    log:
        "logs/{scale}/{study}/audit.log",
    conda:
        "../envs/turnscale.yaml"
    shell:
        "turnscale audit {input.ledger:q} --comparisons {input.comparisons:q}"
        " --out $(dirname {output.csv:q}) --figures figures/{wildcards.scale:q} > {log:q} 2>&1"
