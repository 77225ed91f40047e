"""Other relays, where installed, each with a configuration tuned for these workloads."""

from zonemta_py.bench.peers.exim import EximRelay
from zonemta_py.bench.peers.haraka import HarakaRelay
from zonemta_py.bench.peers.opensmtpd import OpenSmtpdRelay
from zonemta_py.bench.peers.peer import NoRelay, PeerMaker, ZoneMtaRelay
from zonemta_py.bench.peers.postfix import PostfixRelay
from zonemta_py.bench.peers.slimta import SlimtaRelay

PEERS: dict[str, PeerMaker] = {
    "postfix": PostfixRelay,
    "exim": EximRelay,
    "haraka": HarakaRelay,
    "opensmtpd": OpenSmtpdRelay,
    "slimta": SlimtaRelay,
    "zone-mta": ZoneMtaRelay,
    "none": NoRelay,
}
