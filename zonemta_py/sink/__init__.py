"""A receiving SMTP server with scripted replies, for tests, benchmarks and demonstrations."""
