"""The warning about interpreters that were built without profiles."""

import sys
import sysconfig

import pytest

from zonemta_py.core.runtime import slow_build


@pytest.mark.parametrize(
    ("arguments", "prefix", "slow"),
    [
        ("'--enable-shared'", "/home/ann/.pyenv/versions/3.11.7", True),
        ("'--enable-shared' '--enable-optimizations'", "/opt/python", False),
        (
            "'--enable-shared' '--without-ensurepip'",
            "/usr",
            False,
        ),  # Debian passes the flags in another way
        (None, "C:\\Python311", False),
    ],
)
def test_slow_build(
    monkeypatch: pytest.MonkeyPatch, arguments: str | None, prefix: str, slow: bool
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: arguments)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    assert bool(slow_build()) == slow
    assert prefix in slow_build() or not slow
