"""The tables: one module each, with one function `build_<table>` that gives a `ColumnTable`.

Per-event work is done in the core; what is left here is grouping, naming and arithmetic on few
rows. Times are integer nanoseconds of the trace's clock.
"""
