"""submitters."""
