"""The answers of all operations on the wire, compared with ``tests/golden/operations.txt``.

A running relay is asked at the control socket and over HTTP. Times, ids, ports, counters and durations are replaced by words;
everything else is compared as bytes: keys, their order, values, statuses. A key that the file does not have is not compared,
so that a field that is added changes one file only. ``python -m tests.admin.test_wire`` writes the file.
"""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.kit.deadlines import until
from tests.kit.relay import Stage, http_port, relaying, send, staged
from zonemta_py.admin.control_client import SOCKET_NAME
from zonemta_py.admin.registry import OPERATIONS
from zonemta_py.core.codec import from_json, from_plain, to_json
from zonemta_py.core.model import OutcomeKind
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden" / "operations.txt"
NEW = "127.0.0.31"
GONE = "0" * 24
COUNTED = (
    "_ms|_s|fsyncs|transitions|compactions|seq|position|exported|older_than|sessions|sessions_in|sessions_out|idle|provider_sessions"
    "|body_bytes|bytes|size_bytes|wait_s|used|chunks|attempts_per_s|step"
)
WORDS = (
    (r"[0-9a-f]{24}", "ID"),
    (r"\b1[0-9]{12}\b", "1"),
    (r"(127\.0\.[01]\.[0-9]+|\[::1\]):[0-9]+", r"\1:PORT"),
    (r'("[a-z0-9_]*(?:' + COUNTED + r')":)-?[0-9.]+', r"\g<1>0"),
    (r'("port":)[0-9]+', r"\g<1>0"),
    (r'("(?:chunk|header|node|version|message_id)":)"[^"]*"', r'\1"TEXT"'),
    (r"code=[\w-]+", "code=CODE"),
    (r"; operations: [a-z, ]+", "; operations: NAMES"),
    (r'("(?:processes|per_s)":)\{[^}]*\}', r"\1{}"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "DAY"),
    (r'("ages":)\[[^]]*\]', r"\1[]"),
    (r'"attempts":[0-9]+,"refused"', '"attempts":0,"refused"'),
)

# Operation and arguments, in this order; MESSAGE is the id of the message that waits.
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("summary", {}),
    ("shape", {}),
    ("shape", {"state": "lost"}),
    ("status", {}),
    ("rates", {"kind": "zone"}),
    ("rates", {"kind": "tenant"}),
    ("destinations", {}),
    ("list", {}),
    ("list", {"limit": 1, "state": "suspended"}),
    ("list", {"zone": "other"}),
    ("list", {"limit": "x"}),
    ("show", {"message": "MESSAGE"}),
    ("show", {"message": GONE}),
    ("show", {}),
    ("why", {"message": "MESSAGE"}),
    ("body", {"message": "MESSAGE"}),
    ("state", {"message": "MESSAGE"}),
    ("tenants", {}),
    ("suspended", {}),
    ("suspend", {"provider": "mx.other.example", "until_ms": 4_000_000_000_000}),
    ("suspend", {"provider": "othr"}),
    ("suspend", {"tenant": "acme", "reason": "unpaid"}),
    ("suspend", {"campaign": "june", "domain": "a.example"}),
    ("suspend", {"zone": "default"}),
    ("suspended", {}),
    ("summary", {}),
    ("list", {}),
    ("destinations", {"troubled": True}),
    ("status", {}),
    ("shaping", {}),
    ("flush", {"domain": "b.example"}),
    ("resume", {"zone": "default"}),
    ("resume", {"tenant": "acme"}),
    ("resume", {"tenant": "acme"}),
    ("resume", {"campaign": "june", "domain": "a.example"}),
    ("resume", {"provider": "mx.other.example"}),
    ("hold", {"campaign": "june", "dry_run": True}),
    ("hold", {}),
    ("hold", {"message": "MESSAGE"}),
    ("list", {"state": "held"}),
    ("release", {"domain": "b.example"}),
    ("release", {"message": "MESSAGE", "dry_run": True}),
    ("warmup", {}),
    ("warmuppause", {"address": NEW}),
    ("warmupcontinue", {"address": NEW}),
    ("shaping", {"provider": "big"}),
    ("shapingend", {"provider": "big", "address": NEW}),
    ("shapingend", {"provider": "big", "pool": "default"}),
    ("verify", {"tenant": "acme", "domains": ["acme.example"], "ask": False}),
    ("usage", {"tenant": "acme"}),
    ("unreachable", {}),
    ("unreachableclear", {"address": "all"}),
    ("login", {}),
    ("reload", {}),
    ("reload", {"file": "/no/such/file"}),
    ("loglevel", {"level": "info"}),
    ("loglevel", {"level": "loud"}),
    ("history", {"key": "no@a.example"}),
    ("tail", {"event": "nothing"}),
    ("check", {}),
    ("audit", {}),
    ("stats", {}),
    ("classify", {"text": "550 5.7.1 your address is blocked"}),
    ("classify", {"text": "hello"}),
    ("bounce", {"message": "MESSAGE", "recipient": "none@a.example"}),
    ("bounce", {"domain": "b.example", "sender": "other@sender.example"}),
    ("delete", {"message": "MESSAGE", "recipient": "later@a.example"}),
    ("delete", {"domain": "b.example"}),
    ("nonsense", {}),
)


@asynccontextmanager
async def serving(stage: Stage) -> AsyncIterator[tuple[Relay, aiohttp.ClientSession, str]]:
    """A relay that has delivered, returned and deferred mail, and has some that an operator stopped; a client; the id of the latter."""
    (stage.directory / "providers.yaml").write_text("providers: {big: {mx: ['*.a.example']}}\n")
    entry = {"address": NEW, "begins": "2020-01-01", "daily": [5, 10]}
    (stage.directory / "warmup.yaml").write_text(yaml.safe_dump([entry]))
    later = Rule(Step.RCPT, recipient="later*", reply="451 4.7.1 later")
    no = Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no")
    await stage.receiver("a.example", later, no)
    await stage.receiver("sender.example")
    config = stage.config(
        admin={"address": "127.0.0.1:0"},
        providers={"file": "providers.yaml", "shipped": False},
        warmup={"file": "warmup.yaml"},
        pools={"default": [{"address": NEW}]},
        tenants={
            "acme": {
                "networks": ["127.0.0.1/32"],
                "domains": ["sender.example"],
                "limits": {"messages": ["100/1h"]},
            }
        },
        zones={"default": {"retry": {"delays": ["1h"]}, "bounce": {"aggregate": "attempt"}}},
        processes={"receivers": 0, "senders": 0},
    )
    async with relaying(config) as relay:
        await relay.queue.suspended.suspend("domain:b.example", "a test")
        mail = b"From: s@sender.example\r\nSubject: hi\r\nX-Campaign: june\r\n\r\nbody\r\n"
        recipients = ["ok@a.example", "no@a.example", "later@a.example", "x@b.example"]
        await send(relay, recipients, mail)
        outcomes = relay.queue.traffic.outcomes
        for kind, code in ((OutcomeKind.BOUNCED, 5), (OutcomeKind.DEFERRED, 4)):
            await until(
                lambda kind=kind, code=code: bool(outcomes.get(("default", kind, code))), "replies"
            )
        await until(lambda: outcomes.get(("default", OutcomeKind.DELIVERED, 2)) == 2, "the report")
        token = (stage.directory / "queue" / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{http_port(relay)}"
        async with aiohttp.ClientSession(url, headers=headers) as client:
            (message,) = {row["message"] for row in (await over_http(client, "list", {}))[1]["rows"]}
            yield relay, client, message


async def over_http(
    client: aiohttp.ClientSession, name: str, arguments: dict[str, Any]
) -> tuple[int, Any]:
    """The status, and the answer."""
    known = OPERATIONS.get(name)
    method, path = (known.method, known.path) if known else ("GET", name)
    if method == "POST":
        sent: dict[str, Any] = {"json": arguments}
    else:
        pairs = (
            (k, v)
            for k, value in arguments.items()
            for v in (value if isinstance(value, list) else [value])
        )
        sent = {"params": [(k, str(v).lower() if isinstance(v, bool) else str(v)) for k, v in pairs]}
    async with client.request(method, f"/api/v1/{path}", **sent) as response:
        return response.status, json.loads(await response.text())


def is_declared(row: dict[str, Any], name: str) -> bool:
    """Whether a row is one of the structs that the operation declares, without other fields."""
    for kind in OPERATIONS[name].rows:
        try:
            read = from_plain(row, kind)
        except ValueError:
            continue
        if kind.open_fields or from_json(to_json(read)) == row:
            return True
    return False


async def at_socket(directory: Path, name: str, arguments: dict[str, Any]) -> list[str]:
    """The frames of the answer."""
    reader, writer = await asyncio.open_unix_connection(directory / "queue" / SOCKET_NAME)
    writer.write(json.dumps({"operation": name, "arguments": arguments}).encode() + b"\n")
    frames = (await reader.read()).decode().splitlines()
    writer.close()
    return frames


def in_words(text: str, directory: Path) -> str:
    """``text`` without what differs from run to run."""
    text = text.replace(str(directory), "DIRECTORY").replace(f"{ROOT}/", "")
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


async def answers(directory: Path) -> list[str]:
    """A line for each question, and the lines of its answers."""
    lines: list[str] = []
    async with staged(directory) as stage, serving(stage) as (_, client, message):
        for name, given in ASKED:
            arguments = {k: message if value == "MESSAGE" else value for k, value in given.items()}
            lines.append(f"? {name} {json.dumps(given)}")
            frames = [] if name in ("login", "tail") else await at_socket(directory, name, arguments)
            lines += [in_words(frame, directory) for frame in frames]
            status, body = await over_http(client, name, arguments)
            if name in OPERATIONS:
                assert [row for row in body.get("rows", ()) if not is_declared(row, name)] == [], name
            text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
            lines.append(f"{status} {in_words(text, directory)}")
    return lines


def known(found: Any, expected: Any) -> Any:
    """``found`` without keys that ``expected`` does not have."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return {key: known(each, expected[key]) for key, each in found.items() if key in expected}
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [known(*pair) for pair in zip(found, expected, strict=True)]
    return found


def compared(line: str, expected: str) -> str:
    """A line of an answer with the keys that are compared."""
    if line.startswith("?"):
        return line
    status, at = (line[:4], 4) if line[0].isdigit() else ("", 0)
    text = json.dumps(known(json.loads(line[at:]), json.loads(expected[at:])))
    return status + text


async def test_answers_on_the_wire(directory: Path) -> None:
    expected, found = GOLDEN.read_text().splitlines(), await answers(directory)
    pairs = zip(found, expected, strict=True)
    assert [compared(*pair) for pair in pairs] == [compared(each, each) for each in expected]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        lines = asyncio.run(answers(Path(made)))
    GOLDEN.write_text("\n".join(lines) + "\n")
    sys.stdout.write(f"{len(lines)} lines\n")
