"""Transports of mail to a peer: SMTP and LMTP sessions, HTTP, programs, maildirs and Python functions."""
