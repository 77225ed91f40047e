"""No relay at all: the source submits straight to the sink, which shows what the two can do alone."""

from zonemta_py.bench.peers.peer import ForegroundPeer


class NoRelay(ForegroundPeer):
    """A process that does nothing, for the columns of a relay."""

    name = "none"

    @classmethod
    def missing(cls) -> str:
        """It needs nothing."""
        return ""

    def start(self) -> None:
        """The source's target is the sink."""
        self.port = self.sink_port
        self.target = f"127.0.0.1:{self.sink_port}"
        self.run(["sleep", "86400"])
