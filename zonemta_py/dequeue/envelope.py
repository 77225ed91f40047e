"""Message and recipient, as a program sees them."""

from typing import NamedTuple


class Recipient(NamedTuple):
    """A recipient of the message; ``address`` identifies it in ``dispose``.

    ``orcpt`` and ``notify`` are the parameters of RFC 3461; ``notify`` holds flags of ``smtp.dsn_params``,
    0 without the parameter. ``attempts`` counts earlier delivery attempts.
    """

    address: str
    domain: str
    orcpt: str
    notify: int
    attempts: int


class Info(NamedTuple):
    """The message. ``accepted_ms``: when it was accepted (Unix time in ms).

    ``envid`` (xtext) and ``ret`` are the parameters of RFC 3461; ``user``, ``client_ip``, ``protocol``
    and ``tenant`` describe the submission. ``size_bytes`` includes the header.
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
    tenant: str = ""
