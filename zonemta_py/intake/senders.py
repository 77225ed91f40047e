"""Whose mail a message is, and whether its envelope sender and its authors are theirs. Pure."""

from collections.abc import Container, Sequence

from zonemta_py.config.tenants import Tenant, Tenants
from zonemta_py.core.errors import NotAccepted
from zonemta_py.smtp import verp
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.authors import Unreadable, author_addresses
from zonemta_py.smtp.headers import Field

VerifiedDomains = Container[tuple[str, str]]  # tenant and domain

NULL_SENDERS = ("", verp.DOUBLE_BOUNCE)


class SenderRules:
    """The rules of one listener. ``any_sender``: users and hosts of no tenant may send as any address."""

    def __init__(self, tenants: Tenants, *, any_sender: bool) -> None:
        self.tenants = tenants
        self._any_sender = any_sender

    def trusts(self, client_ip: str) -> bool:
        """Whether the client is in a network of a tenant."""
        return bool(self.tenants) and self.tenants.of_address(client_ip) is not None

    def is_host_of(self, tenant: str, client_ip: str) -> bool:
        """Whether the client is in a network of ``tenant``, or that is empty. The address may be that of a proxy of many."""
        found = self.tenants.of_address(client_ip) if tenant else None
        return not tenant or (found is not None and found.name == tenant)

    def tenant_of(self, user: str, client_ip: str) -> str:
        """The tenant of a user, or of a host without one; empty for none.

        Raises NotAccepted when it has to be one of a tenant and is not.
        """
        tenant = self.tenants.of(user, client_ip) if self.tenants else None
        if tenant is not None:
            return tenant.name
        if self.tenants and not self._any_sender:
            raise NotAccepted(f"550 5.7.1 {_printable(user or client_ip)} belongs to no tenant")
        return ""

    def check_sender(
        self, tenant: str, who: str, sender: str, verified: VerifiedDomains, *, trusted: bool
    ) -> None:
        """Raises NotAccepted unless mail of ``tenant`` may have the envelope sender. ``who``: user or address."""
        found = self._find(tenant)
        if found is None:
            return
        if sender in NULL_SENDERS:
            if not trusted:
                raise NotAccepted(f"553 5.7.1 {_printable(who)} may not send with the null sender")
            return
        self._check_address(found, who, verp.base(sender), verified)

    def check_header(
        self,
        tenant: str,
        who: str,
        header: bytes,
        fields: Sequence[Field],
        verified: VerifiedDomains,
    ) -> None:
        """Raises NotAccepted unless all authors in From and Sender are addresses of ``tenant``."""
        found = self._find(tenant)
        if found is None:
            return
        try:
            authors = author_addresses(header, fields)
        except Unreadable as exc:
            raise NotAccepted(f"550 5.7.1 {_printable(str(exc))}") from exc
        for author in authors:
            self._check_address(found, who, author, verified)

    def _find(self, name: str) -> Tenant | None:
        """The tenant; None for mail of none. Raises NotAccepted when it was removed since."""
        found = self.tenants.get(name) if name else None
        if name and found is None:
            raise NotAccepted(f"550 5.7.1 There is no tenant {name} any more")
        return found

    def _check_address(self, tenant: Tenant, who: str, address: str, verified: VerifiedDomains) -> None:
        base = tenant.base_of(domain_of(address))
        if not base:
            raise NotAccepted(f"553 5.7.1 {_printable(who)} may not send as {_printable(address)}")
        if tenant.is_verified and (tenant.name, base) not in verified:
            raise NotAccepted(
                f"450 4.7.1 {base} is not verified: no TXT record of _zonemta.{base} is {tenant.name}"
            )


def _printable(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()
