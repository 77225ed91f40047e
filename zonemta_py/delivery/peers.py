"""Extensions that are not used with some peers: by the configuration, or because they were seen broken."""

from collections.abc import Collection, Mapping

from zonemta_py.config.schema import PeerSettings
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.classify import PARAMETERS
from zonemta_py.smtp.reply import Reply

BROKEN_S = 3600.0  # how long an extension is not used with an address where it was broken
BROKEN_MAX = 10_000
FAILED = "handshake"  # what failed once counts under this name
USUAL = PeerSettings()

Address = tuple[str, int]  # IP address and port: behind one address there may be several servers


class Peers:
    """``settings`` by the name of a host, ``*.name`` for those below it, or an IP address. Times are monotonic."""

    def __init__(self, settings: Mapping[str, PeerSettings]) -> None:
        self._settings = settings
        self.withdraws = False  # some host has refused a parameter of an extension that it offers
        self._broken: dict[
            tuple[str, Address], float
        ] = {}  # by extension, or reply: until when it counts

    def settings(self, host: str, ip: str) -> PeerSettings:
        """What the configuration says about a host: by its address, its name, or the longest name above it."""
        if not self._settings:
            return USUAL
        names = [ip, host]
        rest = host
        while "." in rest:
            rest = rest.partition(".")[2]
            names.append(f"*.{rest}")
        return next((self._settings[name] for name in names if name in self._settings), USUAL)

    def may_pipeline(self, host: str, address: Address, now_s: float) -> bool:
        """Whether PIPELINING is used with a host that offers it."""
        return (
            not self._is_broken("PIPELINING", address, now_s)
            and self.settings(host, address[0]).pipelining
        )

    def may_encrypt(self, host: str, address: Address, now_s: float, *, repeats: bool) -> bool:
        """Whether STARTTLS is used with a host that offers it, where it is opportunistic.

        ``repeats``: where it fails another connection follows at once, so that it may be tried each time.
        """
        is_known = not repeats and self._is_broken("STARTTLS", address, now_s)
        return not is_known and self.settings(host, address[0]).starttls

    def parameters_broke(self, extensions: Collection[str], address: Address, now_s: float) -> None:
        """MAIL or RCPT was refused for the parameters of ``extensions``, which the host offers."""
        self.withdraws = True
        for each in extensions:
            self._broke(each, address, now_s)

    def withdrawn(self, address: Address, now_s: float) -> list[str]:
        """The extensions whose parameters are not used with a host, in lower case. Only asked when one ``withdraws``."""
        return [each for each in PARAMETERS if self._is_broken(each, address, now_s)]

    def pipelining_broke(self, address: Address, now_s: float) -> None:
        """A session was lost in the middle of pipelined commands."""
        self._broke("PIPELINING", address, now_s)

    def handshake_failed(self, address: Address, now_s: float) -> bool:
        """STARTTLS failed. Returns whether it is tried again before mail is sent in clear text: after the first time."""
        is_first = not any(self._is_broken(name, address, now_s) for name in (FAILED, "STARTTLS"))
        self._broke(FAILED if is_first else "STARTTLS", address, now_s)
        return is_first

    def refuses_session(
        self, address: Address, sender: str, reply: Reply, now_s: float, *, is_new: bool
    ) -> bool:
        """Whether ``reply`` to MAIL says no more than that the session has had enough: a new one may take the message.

        Not if a new session (``is_new``) has had the same answer lately, for a ``sender`` of the same domain.
        """
        said = f"MAIL {domain_of(sender)} {reply.code} {reply.status}"
        if is_new:
            self._broke(said, address, now_s)
            return False
        return not self._is_broken(said, address, now_s)

    def encrypted(self, address: Address) -> None:
        """A session with TLS was opened: what failed before was an accident."""
        if self._broken:
            self._broken.pop((FAILED, address), None)
            self._broken.pop(("STARTTLS", address), None)

    def _is_broken(self, extension: str, address: Address, now_s: float) -> bool:
        return bool(self._broken) and self._broken.get((extension, address), 0.0) > now_s

    def _broke(self, extension: str, address: Address, now_s: float) -> None:
        if len(self._broken) >= BROKEN_MAX:
            self._broken.clear()
        self._broken[extension, address] = now_s + BROKEN_S
