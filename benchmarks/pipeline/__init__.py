"""Measurements of the pipeline; see benchmarks/README.md."""
