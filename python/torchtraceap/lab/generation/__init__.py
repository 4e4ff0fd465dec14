"""Labeled traces: faults injected into runs, which are written back beside their twins without.

Start reading at `generate.py`. `faults.py` lists the faults. A base (`bases.py`) is a run;
`program.py` knows where work can be injected into it; a `Scene` (`scene.py`) is the base with noise
and what was injected; `graph_faults.py` and `data_parallel.py` say what that is; `pairs.py` says
what it costs, and where; `recorder.py` writes it down as the profiler would have.
`event_injection.py` injects `event_faults.py` between the events of a trace instead.
"""
