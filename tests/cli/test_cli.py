"""The commands as their users run them: exit codes, words, both ways to reach the queue."""

import asyncio
import json
import os
import signal
import smtplib
import subprocess
import sys
from pathlib import Path

from tests.kit.deadlines import scaled
from tests.kit.queue import accept, opened
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.core import clock


def zonemta(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "zonemta_py", *arguments],
        capture_output=True,
        input=stdin,
        timeout=scaled(60),
        check=False,
    )


def test_the_installed_command_prints_its_help() -> None:
    result = zonemta("--help")
    assert result.returncode == 0
    assert b"Usage:" in result.stdout


def test_wrong_usage_is_2() -> None:
    assert zonemta("serve").returncode == 2
    assert zonemta("nonsense").returncode == 2
    assert zonemta("sink", "--listen", "nowhere").returncode == 2


def _config(directory: Path, sink_port: int = 9, **extra: str) -> Path:
    path = directory / "z.yaml"
    more = "\n".join(extra.values())
    path.write_text(
        "listeners: [{address: 127.0.0.1:0}]\nqueue: {directory: queue, min_free_disk: 1MiB}\n"
        f"events: {{directory: events}}\nzones: {{default: {{smarthost: '127.0.0.1:{sink_port}', retry: {{delays: [1h]}}}}}}\n{more}\n"
    )
    return path


def _fill(directory: Path) -> None:
    """A queue with a message to two recipients."""

    async def fill() -> None:
        async with opened(directory, clock.now_ms, store="leveldb") as queue:
            await accept(queue, "a@x.example", "b@y.example", body=b"x" * 200_000)

    asyncio.run(fill())


def test_a_queue_moves(directory: Path) -> None:
    """From LevelDB to the filesystem store, with export and import."""
    old, new, file = directory / "old.yaml", directory / "new.yaml", directory / "queue.export"
    for path, store in ((old, "leveldb"), (new, "filesystem")):
        path.write_text(
            f"queue: {{directory: {path.stem}, store: {store}}}\nevents: {{directory: events}}\n"
        )
    assert b"there is no queue yet" in zonemta("queue", "export", "-c", str(old), str(file)).stderr
    _fill(directory / "old")
    result = zonemta("queue", "export", "-c", str(old), str(file), "--json")
    count = json.loads(result.stdout)["records"]
    assert count > 5
    assert b"exists already" in zonemta("queue", "export", "-c", str(old), str(file)).stderr
    result = zonemta("queue", "import", "-c", str(new), str(file))
    assert result.stdout.decode() == f"{count} records from {file}\n"
    rows = [zonemta("queue", "list", "-c", str(path), "--json").stdout for path in (old, new)]
    assert rows[0] == rows[1] != b""
    assert zonemta("queue", "import", "-c", str(new), str(file)).returncode == 1


def test_a_relay_that_takes_no_mail(directory: Path) -> None:
    """Allowed in a program, an error in ``serve``."""
    path = directory / "z.yaml"
    path.write_text("listeners: []\n")
    assert zonemta("check", "-c", str(path)).returncode == 0
    result = zonemta("serve", "-c", str(path))
    assert result.returncode == 2
    assert b"listeners: at least one is required, or admin.mail" in result.stderr


def test_check(directory: Path) -> None:
    good = _config(directory)
    result = zonemta("check", "-c", str(good))
    assert result.returncode == 0
    assert b"ok" in result.stdout
    assert json.loads(zonemta("check", "-c", str(good), "--json").stdout)["zones"] == ["default"]
    bad = directory / "bad.yaml"
    bad.write_text("zones:\n  bulk:\n    conections: 5\n")
    result = zonemta("check", "-c", str(bad))
    assert result.returncode == 2
    assert (
        f"{bad}:3: zones.bulk.conections: unknown key; did you mean 'connections'?"
        in result.stderr.decode()
    )
    assert b"Traceback" not in result.stderr
    bad.write_text(
        "listeners: [{address: '127.0.0.1:0', auth: {users_file: nope, require_tls: false}, senders: any}]\n"
    )
    assert zonemta("check", "-c", str(bad)).returncode == 2
    assert zonemta("serve", "-c", str(bad)).returncode == 2
    assert zonemta("serve", "-c", str(directory / "nope.yaml")).returncode == 2


def test_password() -> None:
    result = zonemta("password", "news", "--password", "secret")
    assert result.stdout.startswith(b"news:$argon2id$")


def test_serve_signals_and_the_queue_tools(directory: Path) -> None:
    """ready, 111 for a second relay, SIGHUP, the queue commands with and without the relay, SIGTERM with 0."""
    config = _config(directory, free_port())
    relay = CommandProcess(["serve", "-c", str(config)], directory / "log")
    try:
        port = int(relay.wait_ready()[0].rpartition(":")[2])
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.sendmail(
                "s@x.example", ["a@y.example", "b@z.example"], b"Subject: hi\r\n\r\nbody\r\n"
            )
            client.sendmail("s@x.example", ["c@y.example"], b"Subject: two\r\n\r\nbody\r\n")
        second = zonemta("serve", "-c", str(config))
        assert second.returncode == 111
        assert f"in use by process {relay.pid}" in second.stderr.decode()
        os.kill(relay.pid, signal.SIGHUP)
        _tools(config)
        assert relay.stop() == 0
    finally:
        relay.kill()
    assert "configuration reloaded" in (directory / "log").read_text()
    rows = [
        json.loads(line)
        for line in zonemta("queue", "list", "-c", str(config), "--json").stdout.splitlines()
    ]
    assert [row["recipient"] for row in rows] == ["c@y.example"]
    assert b"recipients are due now" in zonemta("queue", "flush", "-c", str(config)).stdout
    message = rows[0]["message"]
    assert zonemta("queue", "delete", "-c", str(config), message).returncode == 0
    assert zonemta("queue", "summary", "-c", str(config)).stdout == b"the queue is empty\n"
    assert zonemta("queue", "delete", "-c", str(config), message).returncode == 1


def _tools(config: Path) -> None:
    def rows() -> list[dict[str, object]]:
        out = zonemta("queue", "list", "-c", str(config), "--json").stdout
        return [json.loads(line) for line in out.splitlines()]

    for _ in range(50):
        if sum(row["state"] == "deferred" for row in rows()) >= 2:
            break
    found = sorted(rows(), key=lambda row: str(row["recipient"]))
    assert sorted(str(row["recipient"]) for row in found) == [
        "a@y.example",
        "b@z.example",
        "c@y.example",
    ]
    assert "refused" in str(found[0]["reply"])
    summary = zonemta("queue", "summary", "-c", str(config)).stdout.decode()
    assert "default" in summary
    assert "* 3" in summary, "all mail waits for the smarthost"
    message = str(found[0]["message"])
    shown = zonemta("queue", "show", "-c", str(config), message).stdout.decode()
    assert "Subject: hi" in shown
    assert "<a@y.example> deferred in default, attempts 1" in shown
    body = zonemta("queue", "body", "-c", str(config), message).stdout
    assert body.endswith(b"Subject: hi\r\n\r\nbody\r\n")
    assert zonemta("queue", "list", "-c", str(config), "--domain", "z.example").stdout.count(b"\n") == 1
    assert zonemta("queue", "list", "-c", str(config), "--limit", "1").stdout.count(b"\n") == 1
    assert zonemta("queue", "check", "-c", str(config)).stdout == b"no problems found\n"
    assert (
        zonemta("queue", "delete", "-c", str(config), message, "--recipient", "a@y.example").returncode
        == 0
    )
    assert (
        zonemta("queue", "delete", "-c", str(config), message).stdout
        == b"1 recipient deleted, 0 in flight and skipped\n"
    )
    assert zonemta("queue", "show", "-c", str(config), message).returncode == 1


def test_queue_tools_without_a_queue(directory: Path) -> None:
    result = zonemta("queue", "summary", "-c", str(_config(directory)))
    assert result.returncode == 1
    assert b"there is no queue yet" in result.stderr


def test_a_damaged_queue_is_found(directory: Path) -> None:
    from zonemta_py.queue.format import keys
    from zonemta_py.queue.upkeep.startup import begin_boot
    from zonemta_py.storage.leveldb_store import LevelDBStore

    config = _config(directory)
    (directory / "queue").mkdir()
    store = LevelDBStore(directory / "queue" / "db")
    begin_boot(store)
    store.write(store.batch([(keys.chunk_key("0" * 24, 1), b"stray")], sync=True))
    store.close()
    result = zonemta("queue", "check", "-c", str(config))
    assert result.returncode == 1
    assert b"chunks without a marker that are neither being written nor removed" in result.stdout


def test_output_that_cannot_be_written(directory: Path) -> None:
    """A full disk: one line, and no stack."""
    config = directory / "z.yaml"
    config.write_text("hostname: relay.example\n")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "zonemta_py", "config", "show", "-c", str(config)],
            stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.stderr == b"error: a write failed: No space left on device\n"
    assert done.returncode == 1


def test_submit_to_a_sink(directory: Path) -> None:
    """CSV from standard input, a journal, refusals, exit codes."""
    port = free_port()
    script = directory / "s.yaml"
    script.write_text("- {at: rcpt, recipient: 'no@*', reply: 550 5.1.1 no such user}\n")
    (directory / "letter.eml").write_text("Subject: Dear {{name}}\n\nHi {{name}}\n")
    sink = subprocess.Popen(
        [sys.executable, "-m", "zonemta_py", "sink", "--listen", f"127.0.0.1:{port}", "--script", str(script), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert sink.stderr is not None
        assert sink.stderr.readline().startswith(b"ready")
        common = [
            "submit",
            "-",
            "--message",
            str(directory / "letter.eml"),
            "--from",
            "s@x.example",
            "--relay",
            f"127.0.0.1:{port}",
            "--journal",
            str(directory / "j"),
        ]
        listed = b"email,name\na@y.example,Ann\nno@y.example,Nobody\n"
        result = zonemta(*common, stdin=listed)
        assert result.returncode == 1
        assert b"1 accepted by the relay" in result.stdout
        assert b"no@y.example: 550 5.1.1 no such user" in result.stdout
        result = zonemta(*common, "--json", stdin=listed + b"b@y.example,Bob\n")
        assert result.returncode == 0
        assert json.loads(result.stdout)["before"] == 2
        assert zonemta(*common[:-2], "--user", "me").returncode == 2
        sink.send_signal(signal.SIGTERM)
        out, _ = sink.communicate(timeout=scaled(20))
        tally = json.loads(out)
        assert (tally["recipients"], tally["repeated"], tally["refused"]) == (2, 0, 1)
    finally:
        sink.kill()
        sink.wait()


def test_submit_with_tls_and_password_to_a_relay_of_two_listeners(directory: Path) -> None:
    """The relay as it is run (uvloop): STARTTLS, AUTH, several listeners, events on stderr."""
    from tests.kit.listener import certificate, users_file

    cert, key, _ = certificate(directory)
    users_file(directory)
    config = directory / "tls.yaml"
    config.write_text(
        "listeners:\n"
        f"  - {{address: '127.0.0.1:0', trusted_networks: [], tls: {{mode: starttls, certificate: {cert}, key: {key}}}, auth: {{users_file: users}}, senders: any}}\n"
        "  - {address: '127.0.0.1:0'}\n"
        "queue: {directory: q2, min_free_disk: 1MiB}\nevents: {directory: e2}\n"
        f"zones: {{default: {{smarthost: '127.0.0.1:{free_port()}'}}}}\n"
    )
    (directory / "letter.eml").write_text("Subject: x\n\nHi\n")
    (directory / "password").write_text("secret\n")
    relay = CommandProcess(["serve", "-c", str(config), "--log-events"], directory / "log")
    try:
        closed, trusted = relay.wait_ready()
        common = ["submit", "-", "--message", str(directory / "letter.eml"), "--from", "s@x.example"]
        listed = b"email\na@y.example\n"
        result = zonemta(
            *common,
            "--relay",
            closed,
            "--user",
            "news",
            "--password-file",
            str(directory / "password"),
            stdin=listed,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        result = zonemta(*common, "--relay", closed, stdin=listed)
        assert result.returncode == 1
        assert b"530 5.7.0 Authentication required" in result.stdout
        assert zonemta(*common, "--relay", trusted, stdin=listed).returncode == 0
        assert relay.stop() == 0
    finally:
        relay.kill()
    log = (directory / "log").read_text()
    assert '"user":"news"' in log
    assert '"event":"rejected"' in log


def test_submit_says_what_is_wrong(directory: Path) -> None:
    letter = directory / "l.eml"
    letter.write_text("Subject: x\n\n")
    for arguments, word in [
        (["nope.csv", "--message", str(letter), "--from", "a@b.example"], b"nope.csv"),
        (["-", "--message", str(directory / "nope"), "--from", "a@b.example"], b"nope"),
        (["-", "--message", str(letter), "--from", "nobody"], b"--from 'nobody'"),
    ]:
        result = zonemta("submit", *arguments, "--relay", "127.0.0.1:9")
        assert result.returncode == 2
        assert word in result.stderr
        assert b"Traceback" not in result.stderr


def test_demo(directory: Path) -> None:
    result = zonemta("demo", "--recipients", "120", "--keep", str(directory / "d"))
    assert result.returncode == 0, result.stdout.decode() + result.stderr.decode()
    assert b"BAD" not in result.stdout
    assert (directory / "d" / "events").is_dir()
    assert zonemta("demo", "--keep", str(directory / "d")).returncode == 1
