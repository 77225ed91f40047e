"""A function of the operator's that sees each report before it is sent. Source: python-slimta's bounce factories."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zonemta_py.config.functions import plain_function
from zonemta_py.smtp.dsn import Failure
from zonemta_py.smtp.headers import is_header

log = logging.getLogger(__name__)


class Bounce(NamedTuple):
    """A report that is about to be sent to ``to``: ``header`` (fields end in CRLF) and ``body`` may be changed.

    ``failures`` are those of the message ``message``, whose header block is ``original``.
    """

    message: str
    to: str
    failures: Sequence[Failure]
    original: bytes
    header: bytes
    body: bytes


BounceFunction = Callable[[Bounce], Bounce | None]


def reworked(name: str | None, bounce: Bounce) -> Bounce | None:
    """What the function ``name`` makes of a report; None: nothing is to be sent.

    A function that fails changes nothing: the sender hears what happened.
    """
    if name is None:
        return bounce
    try:
        made: object = plain_function(name)(bounce)
    except Exception:
        log.exception("the bounce function failed on the report about %s", bounce.message)
        return bounce
    if made is None or (isinstance(made, Bounce) and _is_sound(made)):
        return made
    log.error(
        "the bounce function returned %.200r, expected a Bounce with a header and a body, or None", made
    )
    return bounce


def _is_sound(bounce: Bounce) -> bool:
    octets = isinstance(bounce.header, bytes) and isinstance(bounce.body, bytes)
    return octets and is_header(bounce.header)
