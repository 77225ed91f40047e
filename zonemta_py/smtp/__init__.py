"""SMTP and message formats: bytes in, values out. No I/O, no clock, no randomness."""
