"""What can be counted or timed in a trace, by one vocabulary: contracts and benchmarks ask here."""
