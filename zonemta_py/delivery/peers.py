"""Extensions that are not used with some peers: by the configuration, or because they were seen broken."""

from collections.abc import Mapping

from zonemta_py.config.schema import PeerSettings

BROKEN_S = 3600.0  # how long an extension is not used with an address where it was broken
BROKEN_MAX = 10_000
USUAL = PeerSettings()


class Peers:
    """``settings`` by the name of a host, ``*.name`` for those below it, or an IP address. Times are monotonic."""

    def __init__(self, settings: Mapping[str, PeerSettings]) -> None:
        self._settings = settings
        self._broken: dict[tuple[str, str], float] = {}  # extension, IP address: when it is used again

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

    def may_pipeline(self, host: str, ip: str, now_s: float) -> bool:
        """Whether PIPELINING is used with a host that offers it."""
        return not self._is_broken("PIPELINING", ip, now_s) and self.settings(host, ip).pipelining

    def may_encrypt(self, host: str, ip: str, now_s: float, *, repeats: bool) -> bool:
        """Whether STARTTLS is used with a host that offers it, where it is opportunistic.

        ``repeats``: where it fails another connection follows at once, so that it may be tried each time.
        """
        is_known = not repeats and self._is_broken("STARTTLS", ip, now_s)
        return not is_known and self.settings(host, ip).starttls

    def pipelining_broke(self, ip: str, now_s: float) -> None:
        """A session was lost in the middle of pipelined commands."""
        self._broke("PIPELINING", ip, now_s)

    def starttls_broke(self, ip: str, now_s: float) -> None:
        """STARTTLS failed, and no further connection is permitted that goes on without it."""
        self._broke("STARTTLS", ip, now_s)

    def _is_broken(self, extension: str, ip: str, now_s: float) -> bool:
        return bool(self._broken) and self._broken.get((extension, ip), 0.0) > now_s

    def _broke(self, extension: str, ip: str, now_s: float) -> None:
        if len(self._broken) >= BROKEN_MAX:
            self._broken.clear()
        self._broken[extension, ip] = now_s + BROKEN_S
