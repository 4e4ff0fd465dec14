"""Tables of operators and modules."""
