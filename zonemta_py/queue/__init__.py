"""The queue on LevelDB: keys, states, transitions. Nothing here speaks SMTP."""
