"""Accepting mail over SMTP, over HTTP and from programs, until it is on disk.

A message over SMTP, in the order of reading: ``connection``, ``session``, ``message``, ``stamping``, then
``Queue.accept``.
"""
