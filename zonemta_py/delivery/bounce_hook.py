"""A user-defined function that may change or suppress each report. Source: python-slimta's bounce factories."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zonemta_py.smtp.dsn import RecipientReport
from zonemta_py.smtp.headers import is_header

log = logging.getLogger(__name__)


class Bounce(NamedTuple):
    """A report before it is sent to ``to``. The function may change ``header`` (fields end in CRLF) and ``body``.

    ``failures`` are those of the message ``message`` (the id), whose header block is ``original``.
    """

    message: str
    to: str
    failures: Sequence[RecipientReport]
    original: bytes
    header: bytes
    body: bytes


BounceFunction = Callable[[Bounce], Bounce | None]


def apply_bounce_function(load: Callable[[], BounceFunction | None], bounce: Bounce) -> Bounce | None:
    """Apply the function that ``load`` returns to ``bounce``; None: send no report.

    A function that raises, or returns anything else, leaves the report unchanged.
    """
    try:
        function = load()
        if function is None:
            return bounce
        changed: object = function(bounce)
    except Exception:
        log.exception("the bounce function failed on the report about %s", bounce.message)
        return bounce
    if changed is None or (isinstance(changed, Bounce) and _is_valid(changed)):
        return changed
    log.error(
        "the bounce function returned %.200r, expected a Bounce with a header and a body, or None",
        changed,
    )
    return bounce


def _is_valid(bounce: Bounce) -> bool:
    are_bytes = isinstance(bounce.header, bytes) and isinstance(bounce.body, bytes)
    return are_bytes and is_header(bounce.header)
