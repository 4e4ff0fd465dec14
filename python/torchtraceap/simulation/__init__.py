"""Replay a trace from its dependencies, edit it, replay again (docs/simulation.md)."""
