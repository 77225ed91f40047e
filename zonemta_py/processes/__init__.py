"""The relay in several processes: the queue in one, senders in others, frames between them."""
