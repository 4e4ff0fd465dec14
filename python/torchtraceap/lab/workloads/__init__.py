"""Workloads: models with a runnable step, and a suite of them with random weights."""
