"""ready."""
