"""What to send next: pure decisions about destinations, limits, sources and retries."""
