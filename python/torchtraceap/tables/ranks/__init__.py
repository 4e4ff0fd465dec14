"""Tables that look at all ranks of a job together: collectives, clocks, who is late."""
