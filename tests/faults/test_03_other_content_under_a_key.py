"""3. A key says "the same" of the same message only.

Other content under a known key is accepted as new where other programs made the key, and the event says so; where the key
was meant, it is refused with words. A repeat is in the history of the address, and costs the same under a key of many.
"""

import asyncio
import smtplib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.kit.listener import listening
from tests.kit.queue import events, opened
from tests.kit.relay import Stage, http_port, logged_events, received, relaying, staged
from tests.kit.smtp_client import RawClient
from tests.kit.stores import put
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import HistoryRequest
from zonemta_py.cli.main import main
from zonemta_py.core import clock
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.users import hash_password
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import SubmissionRecord
from zonemta_py.queue.submitters.keys import KeyQuestion, KeyUse, _digest, submission_digest
from zonemta_py.relay.relay import Relay
from zonemta_py.smtp.reply import encode_address

TESTER, OTHER = "tester@dest.example", "list@other.example"
LISTMONK = (
    b"X-Listmonk-Campaign: 0b1c2d3e-0000-4000-8000-000000000001\r\n"
    b"X-Listmonk-Subscriber: 0b1c2d3e-0000-4000-8000-000000000002\r\n"
)


def message(
    fields: bytes, subject: str, body: str, number: int, boundary: str = "", encoding: str = "7bit"
) -> bytes:
    text = f"From: News <n@sender.example>\r\nSubject: {subject}\r\nMessage-ID: <m{number}@sender.example>\r\n"
    text += f"Date: Mon, 2 Nov 2026 10:00:0{number} +0000\r\n"
    if boundary:
        text += f'Content-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n--{boundary}\r\n'
        body += f"\r\n--{boundary}--"
    return fields + text.encode() + f"Content-Transfer-Encoding: {encoding}\r\n\r\n{body}\r\n".encode()


async def sent(relay: Relay, data: bytes, *recipients: str, envid: str = "") -> str:
    """The last reply."""
    host, port = relay.addresses[0]

    def dialogue() -> str:
        with smtplib.SMTP(host, port, "client.example") as client:
            client.ehlo()
            client.mail("n@sender.example", [f"ENVID={envid}"] if envid else [])
            for each in recipients or (TESTER,):
                client.rcpt(each)
            code, text = client.data(data)
            return f"{code} {text.decode()}"

    return await asyncio.to_thread(dialogue)


def history(stage: Stage, address: str) -> list[dict[str, Any]]:
    return list(ask(stage.directory / "queue", HistoryRequest(address)))


@pytest.mark.parametrize("count", [0, 2], ids=["0/0", "2/2"])
async def test_a_test_message_its_correction_and_the_campaign(directory: Path, count: int) -> None:
    """Three messages arrive; the third, built anew, does not arrive again, and history says why."""
    async with staged(directory) as stage:
        sink, other = await stage.receiver("dest.example"), await stage.receiver("other.example")
        config = stage.config(
            processes={"receivers": count, "senders": count},
            zones={"two": {"port": stage.port}},
            routing=[{"recipient_domain": "other.example", "zone": "two"}],
        )
        async with relaying(config) as relay:
            ids = []
            for number, (subject, body) in enumerate(
                [("[Test] Sale", "draft with a typo"), ("[Test] Sale", "corrected"), ("Sale", "the real newsletter")]
            ):  # fmt: skip
                reply = await sent(relay, message(LISTMONK, subject, body, number, f"b{number}"))
                assert "duplicate" not in reply, reply
                ids.append(reply.split()[5])
            again = message(LISTMONK, "=?utf-8?b?U2FsZQ==?=", "dGhlIHJlYWwg\r\nbmV3c2xldHRlcg==", 7, "b7", "base64")  # fmt: skip
            reply = await sent(relay, again)
            assert f"queued as {ids[2]} duplicate" in reply
            reply = await sent(relay, again, TESTER, OTHER)  # one of its recipients is new
            assert f"queued as {ids[2]} duplicate" in reply
            assert ", 1 new recipients as " in reply
            await received(sink, 3)
            await received(other, 1)
            found = await asyncio.to_thread(history, stage, TESTER)
            repeated = [each for each in found if each["event"] == "repeated"]
            assert [(each["message"], each["addresses"]) for each in repeated] == [
                (ids[2], [TESTER])
            ] * 2
            assert not [
                e for e in await asyncio.to_thread(history, stage, OTHER) if e["event"] == "repeated"
            ]
            line = ["history", TESTER, "-c", str(directory / "zonemta.yaml")]
            shown = await asyncio.to_thread(CliRunner().invoke, main, line)
            assert f"repeated  {ids[2]}   → {TESTER}" in shown.output
        assert len(sink.messages) == 3
        by_id = {each["message"]: each for each in logged_events(directory, "accepted")}
        assert [by_id[each].get("same_key_as", "") for each in ids] == ["", ids[0], ids[0]]


KEY = b"X-Submission-Key: june\r\n"


async def test_a_key_that_was_meant(directory: Path) -> None:
    """550 5.7.0, or 409 over HTTP, with the id of the other message; the same message, and nothing else, is a repeat."""
    async with staged(directory) as stage:
        sink = await stage.receiver("dest.example")
        config = stage.config(admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True})
        async with relaying(config) as relay:
            one, two = message(b"", "Sale", "one", 1), message(b"", "Sale", "two", 2)
            first = (await sent(relay, KEY + one)).split()[5]
            reply = await sent(relay, KEY + two)
            assert reply.startswith(
                "550 5.7.0 This submission key was used for another message: sender, From, "
            )
            assert reply.endswith(first)
            assert (await sent(relay, KEY + two, "new@dest.example")).startswith("550 5.7.0")
            assert "duplicate" in await sent(relay, KEY + one)
            assert "duplicate" not in await sent(relay, KEY + one, "new@dest.example")
            assert "duplicate" not in await sent(relay, one, envid="submission-key-7")
            assert (await sent(relay, two, envid="submission-key-7")).startswith("550 5.7.0")
            assert "duplicate" in await sent(relay, one, envid="submission-key-7")
            for field in ("Idempotency-Key", "X-Submission-Key"):
                answers = [await posted(relay, text, {field: '"k"'}) for text in (one, one, two)]
                assert [status for status, _ in answers] == [204, 204, 409]
                assert answers[0][1] == answers[1][1] != answers[2][1]
                assert '550; message="5.7.0 This submission key was used' in answers[2][1]
            first = await relay.enqueue("n@sender.example", [TESTER], one, key="program")
            assert await relay.enqueue("n@sender.example", [TESTER], one, key="program") == first
            with pytest.raises(NotAccepted, match=r"^550 5\.7\.0 This submission key"):
                await relay.enqueue("n@sender.example", [TESTER], two, key="program")
            with pytest.raises(NotAccepted, match=r"^550 5\.7\.0"):
                await relay.enqueue("other@sender.example", [TESTER], one, key="program")
            await received(sink, 6)
        assert len(sink.messages) == 6
        refused = logged_events(directory, "rejected")
        assert {(each["command"], each["code"]) for each in refused} == {("DATA", 550)}


async def posted(relay: Relay, data: bytes, fields: dict[str, str]) -> tuple[int, str]:
    headers = {
        "Content-Type": "message/rfc822", "X-Envelope-Sender": encode_address("n@sender.example"),
        "X-Envelope-Recipient": encode_address(TESTER), **fields,
    }  # fmt: skip
    url = f"http://127.0.0.1:{http_port(relay)}/mail"
    async with aiohttp.ClientSession() as client, client.post(url, data=data, headers=headers) as answer:
        return answer.status, answer.headers["X-Smtp-Reply"]


@pytest.mark.parametrize(
    ("setting", "fields", "is_refused"),
    [
        ("[]", KEY, False),
        ("[x-listmonk-campaign]", KEY, False),
        ("[X-Listmonk-Campaign]", LISTMONK, True),
        ("[X-Submission-Key]", LISTMONK, False),
    ],
)
async def test_each_is_configurable(
    directory: Path, setting: str, fields: bytes, is_refused: bool
) -> None:
    settings = f"    submission_key: {{refuse_other_content: {setting}}}"
    async with (
        listening(directory, settings) as which,
        await RawClient.connect(which.address.port) as client,
    ):
        await client.ehlo()
        first = await client.message(message(fields, "Sale", "one", 1) + b".\r\n", TESTER)
        other = await client.message(message(fields, "Sale", "two", 2) + b".\r\n", TESTER)
        assert other.startswith("550 5.7.0" if is_refused else "250")
        assert "duplicate" not in other
        again = await client.message(message(fields, "Sale", "one", 3) + b".\r\n", TESTER)
        assert f"{first.split()[5]} duplicate" in again


async def test_a_body_of_many_chunks(directory: Path) -> None:
    """It is compared while it streams; what was written of a repeat is removed."""
    async with listening(directory) as which, await RawClient.connect(which.address.port) as client:
        await client.ehlo()
        lines = "the same line\r\n" * 40_000
        first = await client.message(message(KEY, "Sale", lines, 1) + b".\r\n", TESTER)
        again = await client.message(message(KEY, "Sale", lines, 2) + b".\r\n", TESTER)
        assert f"{first.split()[5]} duplicate" in again
        other = await client.message(message(KEY, "Sale", lines + "!", 3) + b".\r\n", TESTER)
        assert other.startswith("550 5.7.0")
        store = which.queue.store
        await until(
            lambda: (
                {keys.owner_of(each) for each in store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE))}
                == {first.split()[5]}
            ),
            "the chunks of the others to go",
        )


# ---- one key on disk for each recipient


def test_what_a_message_writes_under_a_key_of_many() -> None:
    """Its own recipients, whatever the others are."""
    use = KeyUse("d" * 32, "c" * 32, "1" * 24, 9, (TESTER,), is_new=False, is_first=False)
    [(key, value)] = use.rows()
    assert len(key) + len(value) < 200
    assert len(list(use._replace(is_new=True, is_first=True).rows())) == 3


async def test_many_recipients_under_one_key(directory: Path) -> None:
    """A lookup reads those that it asks for; the sweep removes all when the window is over."""
    async with opened(directory, clock.now_ms, store="memory") as queue:
        now_ms, digest = clock.now_ms(), submission_digest("acme", "june")
        addresses = tuple(f"u{n}@dest.example" for n in range(5_000))
        use = KeyUse(digest, "c" * 32, "1" * 24, now_ms + 60_000, addresses, is_new=True, is_first=True)
        for row in use.rows():
            queue.store.write([row])
        known = queue.submission_keys.lookup(KeyQuestion(digest, "", "c" * 32, ("u7@dest.example", "x@dest.example"))).known  # fmt: skip
        assert known is not None
        assert (known.is_other, known.messages) == (False, ("1" * 24, ""))
        queue.submission_keys._now = lambda: now_ms + 60_000
        assert queue.submission_keys.lookup(KeyQuestion(digest)).known is None
        await queue.submission_keys._remove_old()
        assert list(queue.store.keys(keys.SUBMITTED, keys.end_of(keys.SUBMITTED))) == []


@pytest.mark.parametrize("user", ["", "ann"])
async def test_keys_of_the_version_before(directory: Path, user: str) -> None:
    """One record with all recipients, of a user or an address: they are not sent the message again."""
    (directory / "users").write_text(f"ann:{hash_password('secret')}\n")
    listener = "    auth: {users_file: users, require_tls: false}\n    senders: any"
    tenants = "tenants: {acme: {users: [ann], domains: [sender.example]}}"
    async with listening(directory, listener, tenants) as which:
        digest = submission_digest(user or "127.0.0.1", "X-Submission-Key\0june")
        recipients = _digest(TESTER) + _digest("b@dest.example")
        old = SubmissionRecord(7, clock.now_ms() + 60_000, "0" * 24, recipients)
        put(which.queue.store, {keys.submitted_key(digest): pack(old)})
        async with await RawClient.connect(which.address.port) as client:
            await client.ehlo()
            if user:
                assert (await client.command("AUTH PLAIN AGFubgBzZWNyZXQ=")).startswith("235")
            data = message(KEY, "Sale", "one", 1) + b".\r\n"
            sender = "n@sender.example"
            reply = await client.message(data, TESTER, sender=sender)
            assert f"queued as {'0' * 24} duplicate" in reply
            reply = await client.message(data, TESTER, "c@dest.example", sender=sender)
            assert ", 1 new recipients as " in reply
            reply = await client.message(data, "c@dest.example", sender=sender)
            assert "duplicate" in reply
        await until(
            lambda: sum(e["event"] == "repeated" for e in events(which.queue.store)) == 3, "events"
        )
