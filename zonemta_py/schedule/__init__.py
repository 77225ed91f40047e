"""The choice of what is sent next: pure decisions about destinations, limits and retries. Time is an argument."""
