"""Extensions that are not used with some peers: by the configuration, or because PIPELINING was seen broken."""

from collections.abc import Mapping

from zonemta_py.config.schema import PeerSettings

BROKEN_S = 3600.0  # how long PIPELINING is not used with an address where it was broken
BROKEN_MAX = 10_000
USUAL = PeerSettings()


class Peers:
    """``settings`` by the name of a host, ``*.name`` for those below it, or an IP address. Times are monotonic."""

    def __init__(self, settings: Mapping[str, PeerSettings]) -> None:
        self._settings = settings
        self._broken: dict[str, float] = {}  # IP address: when PIPELINING is used again

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
        if self._broken and self._broken.get(ip, 0.0) > now_s:
            return False
        return self.settings(host, ip).pipelining

    def pipelining_broke(self, ip: str, now_s: float) -> None:
        """A session was lost in the middle of pipelined commands."""
        if len(self._broken) >= BROKEN_MAX:
            self._broken.clear()
        self._broken[ip] = now_s + BROKEN_S
