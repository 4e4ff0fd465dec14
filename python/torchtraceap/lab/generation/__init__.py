"""Labelled traces: faults put into the graphs of runs, which are replayed and written back.

Start reading at `generate.py`. A base (`bases.py`) is a run; `program.py` knows where work can be
put into it; a `Scene` (`scene.py`) is the base with noise and what was put in; `faults.py`,
`decoys.py` and `data_parallel.py` say what that is; `loss.py` says what it costs, and where;
`recording.py` writes it down as the profiler would have.
"""
