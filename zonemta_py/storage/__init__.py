"""The store interface and its implementations: LevelDB, memory, files, Redis, S3."""
