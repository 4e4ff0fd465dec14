"""Two sides compared in pairs of fresh processes."""
