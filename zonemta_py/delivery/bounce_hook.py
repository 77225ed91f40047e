"""A user-defined function that may change or suppress each report. Source: python-slimta's bounce factories."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zonemta_py.smtp.address import normalise
from zonemta_py.smtp.dsn import RecipientReport
from zonemta_py.smtp.headers import is_header
from zonemta_py.smtp.transparency import with_crlf

log = logging.getLogger(__name__)


class Bounce(NamedTuple):
    """A report before it is sent to ``to``. The function may change ``to``, ``header`` and ``body``.

    Fields end in CRLF; other line ends in the body are replaced by it. ``failures`` are those of the message ``message`` (the id), whose header block is ``original``.
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
    if changed is None:
        return None
    try:
        return _sendable(changed)
    except (TypeError, ValueError) as exc:
        log.error("the bounce function returned %.200r, which is not used: %s", changed, exc)
        return bounce


def _sendable(changed: object) -> Bounce:
    """``changed`` in the form of the wire. Raises TypeError, ValueError."""
    if not isinstance(changed, Bounce):
        raise TypeError("expected a Bounce or None")
    if not isinstance(changed.header, bytes) or not isinstance(changed.body, bytes):
        raise TypeError("header and body must be bytes")
    if not is_header(changed.header):
        raise ValueError("the header must consist of fields, each with CRLF at its end")
    return changed._replace(to=normalise(changed.to), body=with_crlf(changed.body))
