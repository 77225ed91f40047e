"""Delivery: workers lease recipients, agents transmit the messages, outcomes are settled."""
