"""Tables of what GPUs did: kernels, grids, copies, memory."""
