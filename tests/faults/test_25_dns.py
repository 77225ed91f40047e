"""25. A domain with a hundred MX names that have no address costs few questions, however many recipients it has."""

import pytest

from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.endpoints import NameServer as Server
from zonemta_py.config.schema import Resolver
from zonemta_py.config.values import Seconds
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.delivery.dns import FAILURE_TTL_S, MX_MAX, MxResolver
from zonemta_py.sink.nameserver import NameServer, Records


async def test_names_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two domains that share them, over a minute: each name is asked for once, until its answer is old."""
    names = [f"{n} mx{n}.none.example." for n in range(100)]
    exist = {f"mx{n}.none.example": {"TXT": ["x"]} for n in range(50)}
    records: Records = {**exist, "a.example": {"MX": names}, "b.example": {"MX": names}}
    server, now_s = NameServer(records, 1), 1000.0
    monkeypatch.setattr("zonemta_py.core.clock.monotonic_s", lambda: now_s)
    resolver = MxResolver(Resolver((Server(HostPort("127.0.0.1", await server.start())),), Seconds(5)))
    try:
        for _ in range(10):
            for domain in ("a.example", "b.example"):
                for _recipient in range(3):
                    with pytest.raises(DestinationFailed, match="no mail exchanger") as failed:
                        await resolver.resolve(domain)
                    assert (failed.value.status, failed.value.permanent) == ("4.1.2", False)
            now_s += FAILURE_TTL_S + 1
        hosts = {key: count for key, count in server.queries.items() if key[1] != "MX"}
        assert len(hosts) == 2 * MX_MAX
        assert set(hosts.values()) == {1}
    finally:
        resolver.close()
        server.close()
