"""The states of an SMTP session, and the reasons to read nothing from its client.

::

    connected ─▶ PROXY ─▶ COMMAND ◀──▶ AUTH    a challenge of AUTH, until it is answered
        └────────────────▶    ◀──▶ DATA        after 354, until the final dot
                              ◀──▶ TLS         after the 220 of STARTTLS, until the handshake ends

Every state may be followed by CLOSED.
"""

from enum import StrEnum


class State(StrEnum):
    """What the next bytes from the client are."""

    PROXY = "a header of the PROXY protocol"
    COMMAND = "a command"
    AUTH = "the answer to a challenge of AUTH"
    DATA = "a message, up to its final dot"
    TLS = "a TLS handshake"
    CLOSED = "ignored"


# Compared for every line of a client: module attributes are found faster than members of the class.
PROXY, COMMAND, AUTH, DATA, TLS, CLOSED = State

TRANSITIONS = {
    PROXY: (COMMAND, CLOSED),
    COMMAND: (DATA, AUTH, TLS, PROXY, CLOSED),
    AUTH: (COMMAND, CLOSED),
    DATA: (COMMAND, CLOSED),
    TLS: (COMMAND, CLOSED),
    CLOSED: (CLOSED,),
}


class Pause(StrEnum):
    """Why bytes from the client stay unread."""

    RESULT = "a write, a password check or a TLS handshake is under way"
    WRITING = "the client does not read its replies"
    TURN = "sessions have computed enough in this turn of the event loop"
