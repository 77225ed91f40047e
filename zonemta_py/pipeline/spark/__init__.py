"""What the jobs need of Spark: the session, readers, writers, errors."""
