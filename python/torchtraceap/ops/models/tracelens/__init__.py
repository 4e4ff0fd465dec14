"""Models of operators as TraceLens has them, for numbers that must equal those of TraceLens."""
