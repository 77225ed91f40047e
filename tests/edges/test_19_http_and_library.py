"""19. Mail by HTTP, and from a program, meets the limits of SMTP; the token in any form is compared, never a 500."""

from pathlib import Path

import aiohttp
import pytest

from tests.kit.relay import ONE_PROCESS, http_port, relaying, staged
from zonemta_py.core.errors import NotAccepted, QueueUnavailable
from zonemta_py.relay.relay import Relay
from zonemta_py.smtp.reply import encode_address

TEXT = b"Subject: x\r\n\r\nhello\r\n"


def fields(*recipients: str) -> list[tuple[str, str]]:
    head = [("Content-Type", "message/rfc822"), ("X-Envelope-Sender", encode_address("s@a.example"))]
    return head + [("X-Envelope-Recipient", encode_address(address)) for address in recipients]


def url_of(relay: Relay) -> str:
    return f"http://127.0.0.1:{http_port(relay)}/mail"


async def post(relay: Relay, *recipients: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    more = [*fields(*recipients), *(headers or {}).items()]
    async with (
        aiohttp.ClientSession() as client,
        client.post(url_of(relay), data=TEXT, headers=more) as answer,
    ):
        return answer.status, answer.headers.get("X-Smtp-Reply", "") or answer.headers.get(
            "WWW-Authenticate", ""
        )


async def test_too_many_recipients(directory: Path) -> None:
    async with staged(directory) as stage:
        config = stage.config(
            listeners=[{"address": "127.0.0.1:0", "max_recipients": 2}],
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True}, processes=ONE_PROCESS,
        )  # fmt: skip
        async with relaying(config) as relay:
            status, reply = await post(relay, *(f"u{n}@a.example" for n in range(3)))
            assert (status, reply[:20]) == (503, '452; message="4.5.3 ')
            with pytest.raises(NotAccepted, match=r"^452 4\.5\.3"):
                await relay.enqueue("s@a.example", [f"u{n}@a.example" for n in range(3)], TEXT)


async def test_no_space(directory: Path) -> None:
    async with staged(directory) as stage:
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True}, processes=ONE_PROCESS,
            queue={"directory": "queue", "min_free_disk": "1000TiB"},
        )  # fmt: skip
        async with relaying(config) as relay:
            status, reply = await post(relay, "u@a.example")
            assert (status, reply[:20]) == (503, '452; message="4.3.1 ')
            with pytest.raises(NotAccepted, match=r"^452 4\.3\.1"):
                await relay.enqueue("s@a.example", ["u@a.example"], TEXT)


async def test_a_queue_that_cannot_be_written(directory: Path) -> None:
    async with staged(directory) as stage:
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True},
            processes=ONE_PROCESS,
        )
        async with relaying(config) as relay:
            relay.queue.commits.failure = QueueUnavailable("the disk is gone")
            status, reply = await post(relay, "u@a.example")
            assert (status, reply[:20]) == (503, '451; message="4.3.0 ')


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("Bearer secret", 204), ("bearer secret", 204), ("BEARER  secret", 204), ("Basic secret", 401), ("secret", 401),
        ("Bearer secre", 401), ("Bearer \u00ff", 401), ("Bearer \udcff", 401), ("", 401),
    ],
)  # fmt: skip
async def test_the_token(directory: Path, given: str, status: int) -> None:
    (directory / "token").write_text("secret\n")
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "token_file": "token"}, processes=ONE_PROCESS
        )
        async with relaying(config) as relay:
            found, _ = await post(
                relay, "u@a.example", headers={"Authorization": given} if given else {}
            )
            assert found == status
            if status == 401:
                async with (
                    aiohttp.ClientSession() as client,
                    client.post(url_of(relay), data=b"") as answer,
                ):
                    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 204), ("[::1]:80", 204), ("localhost:8025", 204), ("relay.example", 401), ("evil.example", 403), ("", 403)],
)  # fmt: skip
async def test_the_host_without_a_token(directory: Path, host: str, status: int) -> None:
    """A page whose name resolves to this machine cannot send mail."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True},
            processes=ONE_PROCESS,
        )
        async with relaying(config) as relay:
            found, _ = await post(relay, "u@a.example", headers={"Host": host})
            assert found == status
