"""The HTML page of a report from rows that were collected. It imports no Spark."""
