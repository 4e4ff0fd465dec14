"""Tables of what the host did: threads, calls, launches."""
