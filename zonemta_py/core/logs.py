"""The log of every process of the relay: to stderr, in one format."""

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logs(level: str) -> None:
    """Log messages of ``level`` (debug, info, warning, error) and above."""
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=FORMAT)
    # asyncio logs every connection at lower levels; the event log has what matters.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
