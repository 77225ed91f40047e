"""CPU of look-ups: ``python benchmarks/look_ups.py [DOMAINS]``, with a name server in another process.

Each domain has one exchanger with one address: three questions (MX, A, AAAA).
"""

import asyncio
import subprocess
import sys
import time

import uvloop

from zonemta_py.config.endpoints import HostPort, NameServer
from zonemta_py.config.schema import Resolver
from zonemta_py.config.values import Seconds
from zonemta_py.delivery.dns import MxResolver

AT_ONCE = 20
RUNS = 3
SERVER = """
import asyncio, sys
from zonemta_py.sink.nameserver import NameServer

async def serve():
    records = {}
    for n in range(int(sys.argv[1])):
        records[f"d{n}.example"] = {"MX": [f"10 mx.d{n}.example."]}
        records[f"mx.d{n}.example"] = {"A": ["127.0.1.1"]}
    print(await NameServer(records).start(), flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


async def look_up(port: int, domains: int) -> float:
    """Milliseconds of CPU for a domain."""
    server = NameServer(HostPort("127.0.0.1", port))
    resolver = MxResolver(Resolver((server,), Seconds(5)))
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with slots:
            [host] = await resolver.resolve(f"d{number}.example")
            assert host.ips == ("127.0.1.1",)

    began_s = time.process_time()
    await asyncio.gather(*(one(number) for number in range(domains)))
    used_s = time.process_time() - began_s
    resolver.close()
    return used_s / domains * 1000


def main() -> None:
    domains = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(domains)], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        found = sorted(uvloop.run(look_up(port, domains)) for _ in range(RUNS))
        print(
            f"{found[RUNS // 2]:.2f} ms of CPU for a domain (median of {RUNS}; {found[0]:.2f} to {found[-1]:.2f})"
        )
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
