"""The YAML configuration: frozen values, units, and errors that name file, line and key."""
