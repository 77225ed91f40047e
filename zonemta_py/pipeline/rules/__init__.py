"""The rules of the pipeline, in plain Python: no Spark, no network."""
