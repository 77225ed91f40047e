"""Other relays, where they are installed: each with a configuration tuned for these workloads."""

from zonemta_py.bench.peers.peer import PeerMaker
from zonemta_py.bench.peers.postfix import PostfixRelay

PEERS: dict[str, PeerMaker] = {
    "postfix": PostfixRelay,
}
