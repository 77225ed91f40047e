"""Channel programs."""
