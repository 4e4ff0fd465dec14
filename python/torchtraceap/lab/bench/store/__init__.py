"""Storage of runs by content, and reports that are made from them."""
