"""Workloads run in fresh processes: what is asked, what a process measures, what comes of it."""
