"""Data sets of labeled traces: planned, generated, written and described."""
