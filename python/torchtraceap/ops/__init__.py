"""Operators, kernels and devices: models of their work, durations, and a database of GPUs."""
