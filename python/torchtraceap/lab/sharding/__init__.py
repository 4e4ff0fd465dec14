"""Choice of the rank that holds each embedding table, by the predicted step time.

tables.py defines the problem, cost.py the cost of an assignment; sharders.py makes assignments, and
choose.py ranks them.
"""

from torchtraceap.lab.sharding.choose import SHARDERS, choose_sharding
from torchtraceap.lab.sharding.result import Candidate, Part, RankLoad, Sharding
from torchtraceap.lab.sharding.tables import Cluster, Table, read_tables

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
