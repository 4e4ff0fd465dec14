"""Runs that are kept, by content, and what is read from them."""
