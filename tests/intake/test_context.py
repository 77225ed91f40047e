"""What sessions share: settings, TLS files, the number of sessions."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.listener import certificate, make_config, users_file
from tests.kit.queue import opened
from zonemta_py.config.hooks import NO_HOOKS
from zonemta_py.core.errors import ConfigError
from zonemta_py.intake.context import (
    TOO_MANY,
    IntakeTurns,
    ListenerContext,
    SessionSettings,
    load_settings,
    make_tls_context,
)
from zonemta_py.intake.users import PasswordChecks
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router
from zonemta_py.storage.open import DiskSpace


class Stub:
    """A session that does nothing."""

    busy = False

    def close_if_idle(self) -> None: ...

    def give_up(self) -> None: ...

    def abort(self) -> None: ...


def settings(directory: Path, listener: str = "", rest: str = "") -> SessionSettings:
    config = make_config(directory, listener, rest)
    return load_settings(config.listeners[0], "relay.example", config, make_router(config), NO_HOOKS)


def context_of(loaded: SessionSettings, queue: Queue, directory: Path) -> ListenerContext:
    turns = IntakeTurns(asyncio.get_running_loop())
    return ListenerContext(loaded, queue, DiskSpace(directory, 1), PasswordChecks(), turns)


def test_files_and_functions_are_loaded(tmp_path: Path) -> None:
    cert, key, _ = certificate(tmp_path)
    users = users_file(tmp_path)
    loaded = settings(
        tmp_path,
        f"    tls: {{mode: starttls, certificate_file: {cert}, key_file: {key}}}\n    auth: {{users_file: {users}}}",
        "policies: [zonemta_py.policies.split_by_domain]",
    )
    assert loaded.tls_context is not None
    assert loaded.users is not None
    assert [policy.__name__ for policy in loaded.rules.policies] == ["split_by_domain"]
    assert loaded.rules.hostname == "relay.example"


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("not a certificate")
    config = make_config(
        tmp_path, "    tls: {mode: implicit, certificate_file: cert.pem, key_file: cert.pem}"
    )
    with pytest.raises(ConfigError, match=r"cert\.pem.*cannot be used for TLS"):
        make_tls_context(config.listeners[0])


async def test_admission(tmp_path: Path) -> None:
    """Up to max_sessions, and none once the listener stops."""
    async with opened(tmp_path / "queue", store="memory") as queue:
        loaded = settings(tmp_path, "    max_sessions: 2\n    trusted_networks: [192.0.2.0/24]")
        context = context_of(loaded, queue, tmp_path)
        one, two, three = Stub(), Stub(), Stub()
        assert [context.admit(each, "192.0.2.1") for each in (one, two, three)] == ["", "", TOO_MANY]
        context.ended(one)
        assert context.admit(three, "192.0.2.1") == ""
        context.ended(two)
        context.stopping = True
        assert context.admit(one, "192.0.2.1") == TOO_MANY
        assert context.trusts("192.0.2.1")
        assert not context.trusts("127.0.0.1")
        assert not context.is_proxy("127.0.0.1")


async def test_apply(tmp_path: Path) -> None:
    """A reload changes limits, users and TLS under open sessions."""
    async with opened(tmp_path / "queue", store="memory") as queue:
        loaded = settings(tmp_path)
        context = context_of(loaded, queue, tmp_path)
        assert context.starttls_context is None
        cert, key, _ = certificate(tmp_path)
        context.apply(
            settings(
                tmp_path,
                f"    max_errors: 3\n    proxies: [127.0.0.0/8]\n    tls: {{mode: starttls, certificate_file: {cert}, key_file: {key}}}",
            )
        )
        assert context.settings.max_errors == 3
        assert context.is_proxy("127.0.0.1")
        assert context.starttls_context is not None
        context.apply(replace(loaded, users=None))
        assert context.starttls_context is None
