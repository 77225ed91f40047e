"""Mail comes in: listeners, sessions, and the path of a body into the queue."""
