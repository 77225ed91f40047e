"""The queue: messages and recipients on disk, and every transition between their states."""
