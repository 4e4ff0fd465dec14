"""Statistics of comparisons: pure functions on arrays. docs/verdicts.md has the formulas."""
