"""The mail provider of a domain, as the relay names it. Pure.

The pipeline looks up no exchangers: it knows a provider by the ``domains`` of the relay's table, which
``config/providers.yaml`` has; any other domain is its own provider.
"""

from zonemta_py.config.providers import load_providers

PROVIDERS = {
    domain: name
    for name, settings in load_providers(None, shipped=True).providers.items()
    for domain in settings.domains
}


def provider_of(domain: str) -> str:
    """The provider of a normalised domain: a name of the table, or the domain itself."""
    return PROVIDERS.get(domain, domain)
