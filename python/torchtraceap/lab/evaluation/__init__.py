"""Evaluation of scorers of windows with faults: metrics, baselines, intervals, tables.

Nothing else reads labels of test splits (docs/evaluation.md).
"""
