"""Providers of domains."""

from zonemta_py.pipeline.rules.provider import provider_of


def test_providers() -> None:
    assert provider_of("gmail.com") == provider_of("googlemail.com") == "google"
    assert provider_of("d1.example") == "d1.example"
