"""Source, sink, name server and measurements for demos, tests and benchmarks."""
