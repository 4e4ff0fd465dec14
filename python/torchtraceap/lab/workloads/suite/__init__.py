"""The suite: one module for each field, small real architectures with random weights.

A function with `@workload` is one, in any module of this folder. It makes model and data anew, of
the size asked for, in less than 30 lines; docs/benchmarking.md says how to add one.
"""
