"""The named workloads of ``zonemta bench``."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload: ``messages`` of ``size`` octets to ``recipients`` each, over ``sessions``."""

    name: str
    title: str
    messages: int
    sessions: int
    recipients: int = 1
    size: int = 4096
    keep: bool = True

    def scaled(self, factor: float) -> "Scenario":
        """The same with ``factor`` times as many messages, at least as many as sessions."""
        messages = max(self.sessions, int(self.messages * factor))
        return Scenario(
            self.name, self.title, messages, self.sessions, self.recipients, self.size, self.keep
        )


SCENARIOS = (
    Scenario("kept", "4 KB, kept sessions", 20_000, 30),
    Scenario("single", "4 KB, one connection each", 10_000, 30, keep=False),
    Scenario("list", "4 KB, 50 recipients", 1_500, 20, recipients=50),
    Scenario("64k", "64 KB, kept sessions", 4_000, 20, size=65_536),
    Scenario("20m", "20 MB, kept sessions", 20, 10, size=20 << 20),
)
