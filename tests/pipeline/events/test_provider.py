"""Providers of domains."""

import pytest

from zonemta_py.pipeline.events.rows import provider_of


@pytest.mark.parametrize(
    ("domain", "provider"),
    [
        ("gmail.com", "google"),
        ("googlemail.com", "google"),
        ("hotmail.co.uk", "microsoft"),
        ("yahoo.co.jp", "yahoo_jp"),
        ("aol.com", "yahoo"),
        ("mail.com", "mail_com"),
        ("web.de", "gmx"),
        ("me.com", "apple"),
        ("foxmail.com", "qq"),
        ("d1.example", "d1.example"),
    ],
)
def test_providers(domain: str, provider: str) -> None:
    """The names are those of the relay's limits, events and shaping rules."""
    assert provider_of(domain) == provider
