"""How every process of the relay writes its log: to stderr, one form, one stream."""

import logging
import sys

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logs(level: str) -> None:
    """Log from ``level`` (debug, info, warning, error) on."""
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=FORM)
    # These log every command and connection; what is worth keeping of that is in the event log.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
