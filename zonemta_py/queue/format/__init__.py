"""The queue on disk: keys, records and message ids. Imports core only."""
