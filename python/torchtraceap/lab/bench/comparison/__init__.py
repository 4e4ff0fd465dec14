"""Comparison of two sides in pairs of fresh processes."""
