"""How well scorers find windows with faults: metrics, baselines, intervals, tables, honesty checks.

Nothing else reads labels of test splits (docs/benchmark.md).
"""
