"""The control socket of a running relay."""
