# The plan, and where its products are. Everything here is light: no torch, no MLflow.
from snakemake.shell import shell as bash
from turnscale.study import resolve
from turnscale.workflow import (
    Products,
    check_options,
    pack_size,
    refusing,
    summary_after,
    summary_before,
)

config.setdefault("study", "mpo")
config.setdefault("scale", "quick")

with refusing():
    PLAN = resolve(
        str(config["study"]), str(config["scale"]), seeds=config.get("seeds")
    )
    PRODUCTS = Products(
        PLAN,
        partial=check_options(config),
        pack=pack_size(PLAN, config.get("pack")),
    )
    PLAN.write_specs()
    SHARE = PRODUCTS.share(config.get("share"))

RUNS = PRODUCTS.runs
EVALUATIONS = PRODUCTS.evaluations
TABLES = PRODUCTS.tables
FIGURES = PRODUCTS.figures
AUDITS = PRODUCTS.audits

TRACKING = "results/{scale}/tracking.json"
GATES = str(PRODUCTS.gates)

THREADS = PLAN.scale.threads
MEMORY = PLAN.scale.runtime.job_memory_mb
MINUTES = PLAN.scale.runtime.job_minutes
# Left out where none is needed: an executor may read a GPU count of 0 as a wish for a GPU node.
GPU = {"gpu": PLAN.scale.runtime.gpus} if PLAN.scale.runtime.gpus else {}

NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]*"


def old(inputs):
    """Inputs whose names carry the hash of their content: only their absence matters, not their age."""
    return {
        name: ancient(path) if isinstance(path, str) else [ancient(one) for one in path]
        for name, path in inputs.items()
    }


wildcard_constraints:
    study=NAME,
    scale=NAME,
    family=NAME,
    model=NAME,
    cell=NAME,
    name=NAME,
    panels=r"[0-9a-f]{8}",
    base=r"[0-9a-f]{8}",
    critic=r"[0-9a-f]{8}",
    train=r"[0-9a-f]{8}",
    evaluation=r"[0-9a-f]{8}",
    seed=r"[0-9]+",
    first=r"[0-9]+",
    last=r"[0-9]+",


# A job's threads are fixed, since another number gives other bits.
bash.prefix(
    "set -euo pipefail; export OMP_NUM_THREADS={0} MKL_NUM_THREADS={0} OPENBLAS_NUM_THREADS={0} ".format(
        THREADS
    )
    + "TOKENIZERS_PARALLELISM=false MPLBACKEND=Agg; "
)
