"""Feedback: reports by mail, and the addresses to suppress.

reports     ``zonemta pipeline dsn``: reads reports out of mail, and matches them to recipients
bounces     ``zonemta pipeline suppress``: hard bounces and complaints
"""
