"""Reading: files of a profiler become ranks of a `Trace`. Execution traces stand beside them."""
