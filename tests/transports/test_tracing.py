"""What is traced, and what is not."""

from collections.abc import Iterator

import pytest

from zonemta_py.core import clock
from zonemta_py.smtp.dialogue import DialogueLines
from zonemta_py.transports import tracing
from zonemta_py.transports.tracing import TraceLine, Tracer, normal_target

ID = "01a2b3c4d5e6f70000abcdef"


@pytest.fixture
def lines() -> list[TraceLine]:
    return []


@pytest.fixture
def tracer(lines: list[TraceLine]) -> Iterator[Tracer]:
    tracer = Tracer()
    tracer.configure("relay", ["b.example", ID, "192.0.2.1"], lines.append)
    yield tracer


@pytest.mark.parametrize(
    ("text", "normal"),
    [("B.Example", "b.example"), (ID.upper(), ID), (" 192.0.2.1", "192.0.2.1"), ("2001:DB8::0:1", "2001:db8::1")],
)  # fmt: skip
def test_targets(text: str, normal: str) -> None:
    assert normal_target(text) == normal


@pytest.mark.parametrize("text", ["", "a b.example", "user@b.example", "word", "<b.example>", "b."])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match="no domain, queue id or IP address"):
        normal_target(text)


def test_a_transaction_is_traced_by_any_of_its_names(tracer: Tracer, lines: list[TraceLine]) -> None:
    assert tracer.outgoing("mx[192.0.2.9]:25", ["c.example", "192.0.2.9"], "0" * 24, None) is None
    first = tracer.outgoing("mx[192.0.2.1]:25", ["b.example", "192.0.2.1"], ID, None)
    assert first is not None
    first.client(b"MAIL FROM:<>\r\n")
    assert set(lines[0].targets) == {"b.example", "192.0.2.1", ID}
    assert (lines[0].side, lines[0].speaker, lines[0].message) == ("out", "C", ID)
    later = tracer.outgoing("mx[192.0.2.9]:25", [], ID, first)
    assert later is not None
    assert later.label == first.label  # the same session


def test_a_client_is_shown_from_its_first_line_on(tracer: Tracer, lines: list[TraceLine]) -> None:
    """Once a domain that it names is known to be traced; other clients never."""
    for domain, shown in (("c.example", 0), ("b.example", 3)):
        session = tracer.incoming("192.0.2.7", DialogueLines())
        session.server(b"220 relay\r\n")
        session.client(b"EHLO x\r\n")
        assert lines == []
        session.client(f"RCPT TO:<u@{domain}> NOTIFY=NEVER\r\n".encode())
        assert len(lines) == shown
    by_address = tracer.incoming("192.0.2.1", DialogueLines())
    by_address.server(b"220 relay\r\n")
    assert len(lines) == 4


def test_nothing_follows_the_end(tracer: Tracer, lines: list[TraceLine]) -> None:
    session = tracer.incoming("192.0.2.1", DialogueLines())
    tracer.configure("relay", [], lines.append)
    assert not tracer.is_active
    session.client(b"EHLO x\r\n")
    assert lines == []


def test_a_flood_is_cut(tracer: Tracer, lines: list[TraceLine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LINES_PER_S", 5)
    monkeypatch.setattr(clock, "now_ms", lambda: 1_000)
    session = tracer.incoming("192.0.2.1", DialogueLines())
    session.client(b"NOOP\r\n" * 20)
    assert len(lines) == 5
    tracer.hand_on(lines[0])  # of another process, which has its own limit
    assert len(lines) == 6
    monkeypatch.setattr(clock, "now_ms", lambda: 2_000)
    session.client(b"NOOP\r\n")
    assert [line.text for line in lines[6:]] == ["15 lines were left out", "NOOP"]


def test_several_relays_trace_in_one_process(tracer: Tracer, lines: list[TraceLine]) -> None:
    """Each gets its own lines, and none takes those of another."""
    others: list[TraceLine] = []
    tracer.configure("other", ["c.example"], others.append)
    assert tracer.targets == {"b.example", "c.example", ID, "192.0.2.1"}
    for domain in ("b.example", "c.example"):
        session = tracer.outgoing("mx", [domain], "", None)
        assert session is not None
        session.client(b"NOOP\r\n")
    assert [len(lines), len(others)] == [1, 1]
    tracer.configure("other", [], others.append)
    assert tracer.is_active


def test_a_second_watcher_interrupts_no_trace(tracer: Tracer, lines: list[TraceLine]) -> None:
    session = tracer.incoming("192.0.2.7", DialogueLines())
    session.client(b"RCPT TO:<u@b.example>\r\n")
    activation = tracer.activation
    tracer.configure("relay", [*tracer.targets, "192.0.2.7"], lines.append)
    assert tracer.activation == activation, "sessions keep their traces"
    session.client(b"NOOP\r\n")
    assert [line.text for line in lines] == ["RCPT TO:<u@b.example>", "NOOP"]
    assert "192.0.2.7" in lines[1].targets


def test_what_another_part_has_read_is_for_a_terminal(tracer: Tracer, lines: list[TraceLine]) -> None:
    """Bytes that are no UTF-8, as aiosmtplib returns them, and control characters."""
    session = tracer.outgoing("mx", ["b.example"], "", None)
    assert session is not None
    session.said("S", b"220 caf\xe9 \x1b]0;x\x07\x0b one\r\n220 two".decode("utf-8", "surrogateescape"))
    session.note("lost \udce9")
    assert [line.text for line in lines] == [
        "220 caf\\xe9 \\x1b]0;x\\x07\\x0b one",
        "220 two",
        "lost \\xe9",
    ]


def test_a_defect_ends_no_session(tracer: Tracer, caplog: pytest.LogCaptureFixture) -> None:
    def fail(line: TraceLine) -> None:
        raise RuntimeError("a defect")

    tracer.configure("relay", ["192.0.2.1"], fail)
    tracer.incoming("192.0.2.1", DialogueLines()).client(b"NOOP\r\n")
    assert "a line of a trace is lost" in caplog.text
