"""The relay: its parts built from a configuration, started in order and stopped in reverse."""
