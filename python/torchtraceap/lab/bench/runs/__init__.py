"""Workloads in fresh processes: configurations, the measured process and its results."""
