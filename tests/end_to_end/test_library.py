"""The relay as a library: a program with a relay in it."""

import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import zonemta_py
from tests.kit.deadlines import scaled
from tests.kit.relay import ONE_PROCESS, empty, ledger, logged_events, staged
from zonemta_py import NotAccepted, Relay, parse_config
from zonemta_py.core import clock
from zonemta_py.delivery.shaper import pace_put
from zonemta_py.egress.controller import Pace
from zonemta_py.policies import split_by_domain
from zonemta_py.queue.commit import CommitFuture, GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_recipient_record
from zonemta_py.queue.messages import read_message, recipients_of
from zonemta_py.sink.script import Rule, Step
from zonemta_py.smtp.reports.dsn import FAILURE, SUCCESS
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.open import open_store

EXAMPLE = Path(zonemta_py.__file__).parents[1] / "docs" / "examples" / "embedded.py"


def test_the_example(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[2].split()[3].rstrip(",") == lines[2].split()[-1], "one id for one key"
    assert lines[3].startswith("incomplete: 501 5.1.3")
    assert len(list(tmp_path.glob("mail/readers.example/*/new/*"))) == 3


async def test_a_program_enqueues(directory: Path) -> None:
    """Bytes and chunks, LF and CRLF; the receiver gets them as mail has them, once for one key."""
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        async with Relay(stage.config()) as relay:

            async def chunks() -> AsyncIterator[bytes]:
                for piece in (b"Subject: y\r", b"\n\r\nha", b"lf\nend"):
                    yield piece

            one = await relay.enqueue("s@a.example", ["u@d.example"], b"Subject: x\n\nhi\n", key="k", user="app")  # fmt: skip
            again = await relay.enqueue("s@a.example", ["u@d.example"], b"Subject: x\n\nhi\n", key="k", user="app")  # fmt: skip
            two = await relay.enqueue("", ["u@D.example", "u@d.example"], chunks())
            assert one == again != two
            await empty(relay)
        bodies = sorted(message.data.split(b"\r\n\r\n", 1)[1] for message in sink.messages)
        assert bodies == [b"half\r\nend\r\n", b"hi\r\n"]
        assert all(b" with local " in message.data for message in sink.messages)
    assert ledger(directory).total("accepted") == 2


@pytest.mark.parametrize(
    ("recipients", "message", "reply"),
    [
        (["nobody"], b"x", "501 5.1.3"),
        ([], b"x", "503 5.5.1"),
        (["u@d.example"], b"Subject: x\n\n\0\n", "554 5.6.0"),
        (["u@d.example"], b"X: " + b"y" * 70_000 + b"\n\n", "554 5.6.0"),
        (["u@d.example"], b"Subject: x\n\n" + b"line\n" * 400_000, "552 5.3.4"),
    ],
)
async def test_what_is_not_taken(
    directory: Path, recipients: list[str], message: bytes, reply: str
) -> None:
    """As over SMTP; and nothing is left of it."""
    async with staged(directory) as stage:
        config = stage.config(listeners=[{"address": "127.0.0.1:0", "max_message_size": "1MiB"}])
        async with Relay(config) as relay:
            with pytest.raises(NotAccepted, match=reply):
                await relay.enqueue("s@a.example", recipients, message)
            await empty(relay)


async def test_a_message_that_breaks_off(directory: Path) -> None:
    """What the program raises is raised, and nothing is left of the message."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"Subject: x\n\n" + b"y" * 200_000
        raise ValueError("the program changed its mind")

    async with staged(directory) as stage, Relay(stage.config()) as relay:
        with pytest.raises(ValueError, match="changed its mind"):
            await relay.enqueue("s@a.example", ["u@d.example"], broken())
        await empty(relay)


async def test_what_smtp_clients_say_with_parameters(directory: Path) -> None:
    """NOTIFY, ORCPT, RET, ENVID and a zone; each is refused as SMTP refuses it."""
    async with staged(directory) as stage:
        config = stage.config(zones={"bulk": {"retry": {"delays": ["1h"]}}})
        await stage.receiver("d.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        async with Relay(config) as relay:
            message = await relay.enqueue(
                "s@a.example", ["u@d.example", "v@d.example"], b"Subject: x\n\nhi\n", zone="bulk", envid="x1",
                notify="SUCCESS,FAILURE", ret="HDRS", orcpt={"v@d.example": "rfc822;w@a.example"},
            )  # fmt: skip
            with relay.queue.store.frozen() as view:
                meta, _ = read_message(view, message)
                records = {
                    keys.parse_recipient(key)[2]: read_recipient_record(value)
                    for key, value in recipients_of(view, message, meta.zones)
                }
            assert (meta.zones, meta.ret, meta.envid) == (("bulk",), "HDRS", "x1")
            assert {record.notify for record in records.values()} == {SUCCESS | FAILURE}
            assert records["v@d.example"].orcpt == "rfc822;w@a.example"
            for wrong in (
                {"notify": "SOMETIMES"}, {"ret": "ALL"}, {"envid": "a b"}, {"orcpt": {"u@d.example": "w@a.example"}},
                {"zone": "none"},
            ):  # fmt: skip
                with pytest.raises(NotAccepted, match="501 5"):
                    await relay.enqueue("s@a.example", ["u@d.example"], b"x", **wrong)
            with pytest.raises(TypeError, match="unexpected keyword argument 'nofity'"):
                await relay.enqueue("s@a.example", ["u@d.example"], b"x", nofity="NEVER")  # type: ignore[call-arg]  # a mistake


async def test_every_id_of_a_split_message(directory: Path) -> None:
    async with staged(directory) as stage:
        for domain in ("d.example", "e.example"):
            await stage.receiver(domain)
        relay = Relay(stage.config(processes=ONE_PROCESS), policies=[split_by_domain])
        async with relay:
            to = ["u@d.example", "u@e.example", "v@e.example"]
            message = await relay.enqueue("s@a.example", to, b"Subject: x\n\nhi\n", key="k")
            assert message == message.all[0]
            again = await relay.enqueue("s@a.example", to, b"Subject: x\n\nhi\n", key="k")
            assert (again, again.all) == (message, ())
            await empty(relay)
        accepted = [event["message"] for event in logged_events(directory, "accepted")]
        assert sorted(message.all) == sorted(accepted)
        assert len(accepted) == 2


async def test_a_store_of_the_program(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no queue directory, and none is made."""
    monkeypatch.chdir(directory)
    text = "{listeners: [], hostname: r.example, events: {directory: log}}"
    async with Relay(parse_config(text, Path("z.yaml")), store=MemoryStore()) as relay:
        await relay.enqueue("s@a.example", ["u@d.example"], b"Subject: x\n\nhi\n")
        assert not (directory / "var").exists()


@pytest.mark.parametrize("age_ms", [0, 36_000_000], ids=["new", "over"])
async def test_a_reload_where_programs_deliver_all_zones(
    directory: Path, monkeypatch: pytest.MonkeyPatch, age_ms: int
) -> None:
    """A pace of an earlier configuration is stored: no zone asks for it, and a reload reads files in a thread."""
    text = f"hostname: relay.example\nlisteners: []\nadmin: {{address: null}}\nqueue: {{directory: {directory}/queue, min_free_disk: 1MiB}}\n"
    text += f"events: {{directory: {directory}/events}}\nzones: {{default: {{transport: dequeue}}}}\n"
    config, threads = parse_config(text, directory / "z.yaml"), set[str]()
    async with Relay(config):
        pass
    store = open_store(config.queue)
    pace = Pace(2, 1, 10, 20, 1000, clock.now_ms() - age_ms, 0, "421 too many")
    store.write(store.batch([pace_put(("big", "192.0.2.1"), pace)], sync=True))
    store.close()
    submit = GroupCommit.submit

    def noted(commits: GroupCommit, batch: WriteBatch) -> CommitFuture:
        threads.add(threading.current_thread().name)
        return submit(commits, batch)

    monkeypatch.setattr(GroupCommit, "submit", noted)
    async with Relay(config) as relay:
        changed = await relay.reload(parse_config(f"{text}shutdown_grace: 7s\n", directory / "z.yaml"))
    assert changed == ["shutdown_grace"]
    assert threads == {threading.main_thread().name}
