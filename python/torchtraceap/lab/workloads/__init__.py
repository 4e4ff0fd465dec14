"""Workloads: what a step of a model is made of, and a suite of them with random weights."""
