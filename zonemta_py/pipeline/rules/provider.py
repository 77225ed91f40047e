"""The mail provider of a domain, as the relay names it. Pure.

The pipeline looks up no MX hosts. Events name the provider of their domain; where there are none, it is known by the
``domains`` of the relay's table, which ``config/providers.yaml`` has, and any other domain is its own provider.
"""

from zonemta_py.config.providers import ProviderTable, load_providers


def listed_domains(table: ProviderTable) -> dict[str, str]:
    """The provider of each domain that ``table`` lists."""
    return {domain: name for name, each in table.providers.items() for domain in each.domains}


PROVIDERS = listed_domains(load_providers(None, shipped=True))


def provider_of(domain: str) -> str:
    """The provider of a normalised domain: a name of the shipped table, or the domain itself."""
    return PROVIDERS.get(domain, domain)
