"""Messages whose header asks in vain: for a zone that there is not, or by a field that cannot be used. A log line says so."""

import logging
from functools import partial

from zonemta_py.core.repeats import RepeatedLines
from zonemta_py.queue.accept import NewMessage

log = logging.getLogger(__name__)


class UnusableFields:
    """Counts the messages for unknown zones since the start; one line a minute for each zone or defect, and submitter."""

    def __init__(self) -> None:
        self.unknown_zones = 0
        self._lines = RepeatedLines(log)

    def add(self, new: NewMessage) -> None:
        """A message is being accepted."""
        if not new.unknown_zone and not new.ignored:
            return
        who = new.origin.owner or "a program"
        for defect in new.ignored:
            line = f"a field of a message of {who} is ignored: {defect}"
            self._lines.write((defect, who), logging.WARNING, partial(str, line))
        if not new.unknown_zone:
            return
        self.unknown_zones += 1
        zones = ", ".join(sorted({to.zone for to in new.recipients}))
        text = f"there is no zone '{new.unknown_zone}', which the header of a message of {who} names: it goes to {zones}"
        self._lines.write((new.unknown_zone, who), logging.WARNING, lambda: text)

    def close(self) -> None:
        """Write what was counted."""
        self._lines.flush()
