"""Pure transforms of DataFrames: they read and write no files."""
