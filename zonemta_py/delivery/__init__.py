"""Mail goes out: workers that lease, resolve, connect, send and settle."""
