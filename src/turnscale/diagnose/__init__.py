"""The critic-variance diagnostic: how much of a critic's variation lies between turns, and what that distinguishes.

`diagnose` and `diagnose_table` take tidy critic values; `write_diagnosis` reads and writes a study's tables.
"""

from turnscale.diagnose.files import write_diagnosis
from turnscale.diagnose.permutation import excess_share, permute
from turnscale.diagnose.statistics import trajectory_statistics
from turnscale.diagnose.summary import Statistic, summarise
from turnscale.diagnose.table import diagnose, diagnose_table
from turnscale.diagnose.values import CriticValues, from_frame, make
from turnscale.diagnose.verdict import verdict

__all__ = [
    "CriticValues",
    "Statistic",
    "diagnose",
    "diagnose_table",
    "excess_share",
    "from_frame",
    "make",
    "permute",
    "summarise",
    "trajectory_statistics",
    "verdict",
    "write_diagnosis",
]
