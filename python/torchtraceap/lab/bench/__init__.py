"""Workloads and programs measured in fresh processes: runs, verdicts, causes, history."""
