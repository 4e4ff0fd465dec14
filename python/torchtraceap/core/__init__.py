"""Values that every room speaks of: results, tables, arrays, units, files that appear whole."""
