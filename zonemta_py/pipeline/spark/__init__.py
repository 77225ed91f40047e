"""What the jobs need from Spark: the session, table schemas, readers, the data source, errors, progress."""
