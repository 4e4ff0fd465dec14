"""Tables of what GPUs did: kernels, copies, memory, idle time."""
