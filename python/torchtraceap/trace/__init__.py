"""Files of a profiler as the ranks of a `Trace`, and PyTorch's execution traces."""
