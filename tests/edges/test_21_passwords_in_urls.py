"""21. A password in a URL is in no error, event or report; a report does not say where the relay delivers."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.local_transport import local_message
from tests.kit.queue import events
from tests.kit.relay import ONE_PROCESS, relaying, staged
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import RedisSettings
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.text import without_secrets
from zonemta_py.storage.redis import RedisClient
from zonemta_py.transports.http import HttpTransport


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:secret@127.0.0.1:1/in", "http://127.0.0.1:1/in"), ("redis://:secret@h", "redis://h"),
        ("http://h/a@b", "http://h/a@b"), ("http://u:p%40ss@secret@h:1/x", "http://h:1/x"), ("nonsense", "nonsense"),
    ],
)  # fmt: skip
def test_a_url_in_a_message(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


async def test_an_http_server_that_is_down(caplog: pytest.LogCaptureFixture) -> None:
    transport = HttpTransport("http://user:secret@127.0.0.1:1/inner", 5, "relay.example")
    reply = await transport.deliver(local_message(b"x"))
    transport.close()
    assert (reply.code, reply.status) == (0, "4.4.1")
    assert not any(word in reply.text for word in ("secret", "127.0.0.1", "inner"))
    assert "http://127.0.0.1:1/inner" in caplog.text
    assert "secret" not in caplog.text


async def test_the_event_and_the_report(directory: Path) -> None:
    """Through a relay: the event of the deferral, and the text that a report would quote."""
    zone = {"transport": "http", "http": {"url": "http://user:secret@127.0.0.1:1/inner"}}
    async with staged(directory) as stage:
        config = stage.config(zones={"default": zone}, processes=ONE_PROCESS)
        async with relaying(config) as relay:
            await relay.enqueue("s@a.example", ["u@b.example"], b"Subject: x\r\n\r\nhello\r\n")

            def deferred() -> list[dict[str, object]]:
                return [each for each in events(relay.queue.store) if each["event"] == "deferred"]

            await until(deferred, "the deferral")
            assert "the HTTP server cannot be used" in str(deferred()[0]["reply"])
            assert not any(word in str(deferred()) for word in ("secret", "inner"))


def test_redis_urls() -> None:
    with pytest.raises(LocalError) as failed:
        RedisClient(RedisSettings("redis://user:secret@h:notaport/0"), "Redis")
    assert "secret" not in str(failed.value)


def test_a_configuration_error() -> None:
    text = "queue: {store: redis, redis: {url: 'http://u:secret@h'}}\nzones: {default: {transport: http, http: {url: 'ftp://u:secret@h'}}}"  # fmt: skip
    with pytest.raises(ConfigError) as failed:
        parse_config(text, Path("z.yaml"))
    assert "secret" not in str(failed.value)
