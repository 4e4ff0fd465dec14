"""Serving engines: iterations, layers, bubbles, and the operators behind replayed kernels."""
