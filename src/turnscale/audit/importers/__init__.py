"""Importers: outcomes recorded by other tools, turned into the long outcomes table.

Each importer takes the path of one file of one arm and one training seed, and returns :class:`Imported`. None of them
loads pickles, runs code from a log or touches the network (the MLflow importer talks to the store it is given).
"""

from __future__ import annotations

from turnscale.audit.importers.common import Imported
from turnscale.audit.importers.inspect_ai import read_inspect
from turnscale.audit.importers.lm_eval import read_lm_eval
from turnscale.audit.importers.mlflow_runs import read_mlflow
from turnscale.audit.importers.rollouts import read_trl, read_verl
from turnscale.audit.importers.wandb_csv import read_wandb

__all__ = ["Imported", "read_inspect", "read_lm_eval", "read_mlflow", "read_trl", "read_verl", "read_wandb"]
