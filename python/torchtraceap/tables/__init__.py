"""The tables: one module each, with a function `build_<table>` that gives a `ColumnTable`."""
