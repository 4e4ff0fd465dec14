"""Labeled traces of real runs: workloads with a fault, and their twins without."""
