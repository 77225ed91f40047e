"""Messages whose header asks for a zone that there is not: the next routing rule decides, and a log line says so."""

import logging

from zonemta_py.core.repeats import RepeatedLines
from zonemta_py.queue.accept import NewMessage

log = logging.getLogger(__name__)


class UnknownZones:
    """Counts them, ``messages`` since the start; one line a minute for each zone and submitter."""

    def __init__(self) -> None:
        self.messages = 0
        self._lines = RepeatedLines(log)

    def add(self, new: NewMessage) -> None:
        """A message is being accepted."""
        if not new.unknown_zone:
            return
        self.messages += 1
        who = new.origin.owner or "a program"
        zones = ", ".join(sorted({to.zone for to in new.recipients}))
        text = f"there is no zone '{new.unknown_zone}', which the header of a message of {who} names: it goes to {zones}"
        self._lines.write((new.unknown_zone, who), logging.WARNING, lambda: text)

    def close(self) -> None:
        """Write what was counted."""
        self._lines.flush()
