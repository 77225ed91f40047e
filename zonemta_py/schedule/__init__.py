"""What to send next: pure decisions about destinations, limits and retries. Time is an argument."""
