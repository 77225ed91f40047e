"""The relay in several processes: the queue in one, receivers and senders in others, linked by sockets."""
