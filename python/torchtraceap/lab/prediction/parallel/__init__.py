"""Captures one step of each rank of a job without running the job.

The data flow: a text becomes a strategy (strategy.py); a process group that sends nothing stands
for the job (world.py), in which torch's own wrappers run for data parallelism (data.py) and layers
are split (tensor.py), distributed over stages (pipeline.py), or embedding tables are sharded
(embeddings.py) as placement.py decides; the step of one rank of each kind is captured (ranks.py).
"""

from torchtraceap.lab.prediction.parallel.ranks import RankCaptures, capture_ranks, place_tables
from torchtraceap.lab.prediction.parallel.strategy import Strategy, parse_strategy

__all__ = ["RankCaptures", "Strategy", "capture_ranks", "parse_strategy", "place_tables"]
