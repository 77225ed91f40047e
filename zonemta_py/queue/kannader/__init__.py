"""Kannader's storage functions as a view of the queue."""
