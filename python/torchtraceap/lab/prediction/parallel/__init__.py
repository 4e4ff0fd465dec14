"""Captures one step of each rank of a job without running the job.

The data flow: a text becomes a strategy (strategy.py); in a process group that sends nothing the
step of one rank of each kind is captured (ranks.py). Torch's own wrappers run for data parallelism
(data.py), layers are split (tensor.py) with their tokens and words (tokens.py) or distributed over
stages (pipeline.py), and embedding tables are sharded (embeddings.py) as placement.py decides.
"""

from torchtraceap.lab.prediction.parallel.ranks import RankCaptures, capture_ranks, place_tables
from torchtraceap.lab.prediction.parallel.strategy import Strategy, parse_strategy

__all__ = ["RankCaptures", "Strategy", "capture_ranks", "parse_strategy", "place_tables"]
