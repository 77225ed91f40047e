"""Submits a plan to relays.

job           ``zonemta pipeline send``: passes and rounds
submission    envelopes to relays by SMTP, without Spark
ledger        what was submitted of a plan
source        the Spark data source ``zonemta``
"""
