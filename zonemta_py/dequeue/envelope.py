"""What a program is told about a message and its recipients."""

from typing import NamedTuple


class Recipient(NamedTuple):
    """A recipient of the message; ``address`` is how ``dispose`` knows it.

    ``orcpt`` and ``notify`` (flags of ``smtp.dsn_options``, 0: nothing was said) as in RFC 3461.
    ``attempts`` were made before this one.
    """

    address: str
    domain: str
    orcpt: str
    notify: int
    attempts: int


class Info(NamedTuple):
    """What is known of the message. ``accepted_ms``: when its sender's client got the 250 (unix ms).

    ``envid`` (xtext) and ``ret`` as in RFC 3461; ``user``, ``client_ip``, ``protocol``: where it came from.
    """

    id: str
    zone: str
    sender: str
    envid: str
    ret: str
    size_bytes: int
    accepted_ms: int
    user: str
    client_ip: str
    protocol: str
