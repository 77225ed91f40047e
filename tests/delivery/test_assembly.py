"""What sends in one process, put together: what its agents share, and keep over a configuration."""

from pathlib import Path

from zonemta_py.config.load import parse_config
from zonemta_py.delivery.assembly import AssembledSending
from zonemta_py.delivery.session_pool import SessionsByPath
from zonemta_py.schedule.unreachable import UnreachableHosts

CONFIG = """
zones:
  default: {}
  bulk: {connections: 2}
"""


async def test_what_zones_share() -> None:
    """The sessions by path are those of all zones, each of which has idle sessions of its own."""
    sessions = SessionsByPath()
    sending = AssembledSending(UnreachableHosts(), sessions)
    config = parse_config(CONFIG, Path("z.yaml"))
    sending.configure(config, "relay.example", {})
    one, other = (sending.agent(zone) for zone in config.zones.values())
    assert one.pool is not other.pool
    assert one.pool.together is other.pool.together is sessions
    for agent in (one, other):
        agent.close()
    sending.close()


async def test_a_new_configuration() -> None:
    """It is that of agents made from now on; it may be closed before the first."""
    sending = AssembledSending(UnreachableHosts(), SessionsByPath())
    sending.configure(parse_config(CONFIG, Path("z.yaml")), "relay.example", {})
    sending.configure(parse_config(CONFIG, Path("z.yaml")), "other.example", {})
    sending.agent(parse_config(CONFIG, Path("z.yaml")).zones["default"]).close()
    sending.close()
    AssembledSending(UnreachableHosts(), SessionsByPath()).close()
