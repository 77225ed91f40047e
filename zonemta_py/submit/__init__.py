"""Bulk submission over SMTP: recipients, merge fields, journal, pipelined sessions."""
