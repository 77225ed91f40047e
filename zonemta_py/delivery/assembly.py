"""Sending by SMTP in one process, put together: the agents of its zones, and what these share.

The relay makes one when there are no sender processes; each sender process makes one. Shared by all zones are the look-ups of
DNS and of MTA-STS policies, the signer, what is known of peers and of hosts that do not answer, and the sessions by path. A
configuration is used with ``configure``; agents that were made before keep what they had, and end with their owner:

    sending = AssembledSending(unreachable, SessionsByPath())
    sending.configure(config, hostname, load_keys(config.dkim))
    agent = sending.agent(config.zones["default"])
    sending.close()

It runs without a queue (import-linter has a contract).
"""

from collections.abc import Mapping, Sequence
from random import Random

from zonemta_py.config.schema import Config, Dkim, Resolver
from zonemta_py.config.tenants import Tenants
from zonemta_py.config.zones import Zone
from zonemta_py.delivery.dkim import Key, Signer
from zonemta_py.delivery.dns import MxResolver
from zonemta_py.delivery.endpoints import EndpointResolver
from zonemta_py.delivery.session_opener import Peers, SmtpResources
from zonemta_py.delivery.session_pool import OnClosed, SessionPool, SessionsByPath, ignore_closed
from zonemta_py.delivery.smtp_agent import SmtpAgent
from zonemta_py.delivery.sts_policies import StsPolicies
from zonemta_py.schedule.unreachable import UnreachableHosts


class AssembledSending:
    """The agents of this process, and what they share. ``sessions``: those of all zones, by path."""

    def __init__(
        self, unreachable: UnreachableHosts, sessions: SessionsByPath, rng: Random | None = None
    ) -> None:
        self.sessions = sessions
        self._unreachable = unreachable
        self._rng = rng if rng is not None else Random()
        self._signer = Signer(Dkim(), {}, Tenants({}))
        self._look_ups = MxResolver(Resolver())
        self._sts = StsPolicies(self._look_ups)
        self._resources: SmtpResources | None = None

    def configure(self, config: Config, hostname: str, dkim_keys: Mapping[str, Sequence[Key]]) -> None:
        """Use ``config`` for the agents that are made from now on."""
        self._signer.configure(config.dkim, dkim_keys, Tenants(config.tenants))
        self._look_ups.configure(config.resolver)
        self._resources = SmtpResources(
            hostname=hostname,
            endpoints=EndpointResolver(config, hostname, self._look_ups, self._sts, self._rng),
            peers=Peers(config.peers),
            signer=self._signer,
            unreachable=self._unreachable,
            rng=self._rng,
        )

    def agent(self, zone: Zone, on_closed: OnClosed = ignore_closed) -> SmtpAgent:
        """The agent of ``zone``, with idle sessions of its own; ``on_closed``: see ``SessionPool``."""
        assert self._resources is not None, "not configured"
        return SmtpAgent(zone, self._resources, SessionPool(on_closed, self.sessions))

    def close(self) -> None:
        """End what is looked up, fetched and signed."""
        self._signer.close()
        self._sts.close()
        self._look_ups.close()
