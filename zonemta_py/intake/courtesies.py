"""Commands that change nothing, or end everything: NOOP, VRFY, HELP, QUIT.

Source: RFC 5321 sections 4.1.1.6 to 4.1.1.10.
"""

from zonemta_py.intake.commands import Refused
from zonemta_py.intake.connection import Hangup
from zonemta_py.intake.identified import Identified
from zonemta_py.intake.port import Port

IDLE_COMMANDS_MAX = 100  # NOOP, RSET and the like between two messages


class Courteous(Identified):
    """A connection that answers what is only polite. A subclass brings the mail."""

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._idle_commands = 0

    def _count_idle(self) -> None:
        """Commands that do nothing are free only so often, or a session could be held for ever."""
        self._idle_commands += 1
        if self._idle_commands > IDLE_COMMANDS_MAX:
            self._reply("421 4.7.0 Too many commands without a message")
            raise Hangup

    def _noop(self, argument: str) -> None:
        self._count_idle()
        self._reply("250 2.0.0 Ok")

    def _vrfy(self, argument: str) -> None:
        self._count_idle()
        self._reply("252 2.5.2 Send mail to it and see")

    def _help(self, argument: str) -> None:
        self._count_idle()
        self._reply("214 2.0.0 EHLO HELO MAIL RCPT DATA RSET NOOP QUIT VRFY STARTTLS AUTH")

    def _unimplemented(self, argument: str) -> None:
        raise Refused("502 5.5.1 Command not implemented")

    def _quit(self, argument: str) -> None:
        self._reply("221 2.0.0 Bye")
        raise Hangup
