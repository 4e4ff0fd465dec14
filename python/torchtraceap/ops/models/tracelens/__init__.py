"""Models of operators as TraceLens has them, for numbers that must equal its."""
