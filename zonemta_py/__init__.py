"""An outbound SMTP relay for bulk mail: zones, an embedded LevelDB queue, an exact ledger."""

__version__ = "0.1.0"
