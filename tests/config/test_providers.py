"""Files of providers: what they may not have, and what they mean beside the table of the relay."""

from functools import partial
from pathlib import Path

import pytest

from zonemta_py.config.providers import SMARTHOST, ProviderLimits, load_providers
from zonemta_py.config.shaping import read_shaping
from zonemta_py.config.warmup import read_warmups
from zonemta_py.core.errors import ConfigError


def written(directory: Path, text: str) -> Path:
    path = directory / "providers.yaml"
    path.write_text(f"providers:\n  {text}\n")
    return path


MX = "expected a name such as *.google.com"
NAME = "a name is lower-case letters"
DOMAIN = "expected a domain such as example.com"


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("x: {mx: ['a*b?.[x']}", "x.mx", f"found 'a*b?.[x', {MX}"),
        ("x: {mx: ['*']}", "x.mx", MX),
        ("x: {mx: ['MX.example']}", "x.mx", MX),
        ("x: {mx: ['mx.example.']}", "x.mx", MX),
        ("x: {mx: ['mx .example']}", "x.mx", MX),
        ("x: {mx: ['']}", "x.mx", MX),
        ("x: {domains: [not a domain]}", "x.domains", f"found 'not a domain', {DOMAIN}"),
        ("x: {domains: ['*.example']}", "x.domains", DOMAIN),
        ("x: {domains: [Example.com]}", "x.domains", DOMAIN),
        ("x: {domains: [b\u00fccher.example]}", "x.domains", DOMAIN),
        ("a b: {domains: [a.example]}", "a b", NAME),
        ("Big: {domains: [a.example]}", "Big", NAME),
        ("smarthost: {domains: [a.example]}", "smarthost", NAME),
        ("default: {mx: [mx.example]}", "default", "it has no mx and no domains"),
        ("default: {domains: [a.example]}", "default", "it has no mx and no domains"),
        ("gogle: {limits: {sessions: 1}}", "gogle", "no provider 'gogle'; did you mean 'google'?"),
        ("zzz: {limits: {sessions: 1}}", "zzz", "no provider 'zzz'; there is amazon, apple"),
        ("x: {mx: [mx.example], limits: {rate: 0/s}}", "x.limits.rate", "found '0/s', expected a rate such as 100/s, 6000/m or 20000/h, of at least 1"),
        ("x: {mx: ['*.google.com']}", "x.mx", "is also in provider 'google' of the relay, which is found first"),
    ],
)  # fmt: skip
def test_errors_name_the_place(tmp_path: Path, text: str, key: str, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_providers(path, shipped=True)
    assert str(caught.value).startswith(f"{path}:2: providers.{key}: ")
    assert problem in str(caught.value)


def test_beside_the_table(tmp_path: Path) -> None:
    """Other limits; hosts of a provider that is replaced, too; names with dots."""
    path = written(
        tmp_path,
        "google: {limits: {sessions: 3}}\n"
        "  yahoo: {mx: [mx.yahoo.example]}\n"
        "  mine: {mx: ['*.yahoodns.net', 'mx?.mine.example']}\n"
        "  b.example: {domains: [b.example, xn--bcher-kva.example]}\n"
        "  default: {family: ipv4, limits: {sessions: 9}}\n",
    )
    table = load_providers(path, shipped=True)
    assert table.settings("google").limits.sessions == 3
    assert table.of("x.example", ("a.google.com",)) == "google"
    assert table.of("x.example", ("a.yahoodns.net",)) == "mine"
    assert table.of_domain("xn--bcher-kva.example") == "b.example"
    assert table.settings("other.example").limits.sessions == 9
    assert table.settings(SMARTHOST).limits == ProviderLimits(), "it judges no address"
    own = table.settings("b.example")
    assert (own.limits, own.family) == (ProviderLimits(), "both"), (
        "default is for no provider of the table"
    )


@pytest.mark.parametrize("text", ["", "# providers: later\n", "---\n"])
def test_an_empty_file_is_an_error(tmp_path: Path, text: str) -> None:
    """One that was cut to nothing by accident would remove every limit."""
    path = tmp_path / "p.yaml"
    path.write_text(text)
    for read in (partial(load_providers, shipped=True), read_shaping, read_warmups):
        with pytest.raises(ConfigError, match=r"p\.yaml: the file is empty"):
            read(path)
