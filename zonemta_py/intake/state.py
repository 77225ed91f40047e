"""The states of an SMTP session, and the reasons to read nothing from its client.

::

    connected ─▶ PROXY ─▶ COMMAND ◀──▶ AUTH    a challenge of AUTH, until it is answered
        └────────────────▶    ◀──▶ DATA        after 354, until the final dot
                              ◀──▶ TLS         after the 220 of STARTTLS, until the handshake ends

Every state may be followed by CLOSED.
"""

from enum import Enum


class State(Enum):
    """What the next bytes from the client are."""

    PROXY = "a header of the PROXY protocol"
    COMMAND = "a command"
    AUTH = "the answer to a challenge of AUTH"
    DATA = "a message, up to its final dot"
    TLS = "a TLS handshake"
    CLOSED = "ignored"


TRANSITIONS = {
    State.PROXY: (State.COMMAND, State.CLOSED),
    State.COMMAND: (State.DATA, State.AUTH, State.TLS, State.PROXY, State.CLOSED),
    State.AUTH: (State.COMMAND, State.CLOSED),
    State.DATA: (State.COMMAND, State.CLOSED),
    State.TLS: (State.COMMAND, State.CLOSED),
    State.CLOSED: (State.CLOSED,),
}


class Pause(Enum):
    """Why bytes from the client stay unread."""

    RESULT = "a write, a password check or a TLS handshake is under way"
    WRITING = "the client does not read its replies"
