"""The rules of the pipeline, without Spark."""
