"""Chooses which rank holds which embedding table by the predicted step time.

tables.py and cluster.py define the problem, cost.py the cost of an assignment; sharders.py and
search.py make assignments, and choose.py ranks them.
"""

from torchtraceap.lab.sharding.choose import SHARDERS, choose_sharding
from torchtraceap.lab.sharding.cluster import Cluster
from torchtraceap.lab.sharding.result import Candidate, Part, RankLoad, Sharding
from torchtraceap.lab.sharding.tables import Table, read_tables

__all__ = [
    "SHARDERS",
    "Candidate",
    "Cluster",
    "Part",
    "RankLoad",
    "Sharding",
    "Table",
    "choose_sharding",
    "read_tables",
]
