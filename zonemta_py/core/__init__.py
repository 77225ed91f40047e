"""Values and primitives that every other package uses: errors, clock, codec, threads, logs."""
