"""16. Whatever an operator's function writes, a receiver sees one message: CRLF at every line end, no other."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import until
from tests.kit.relay import ONE_PROCESS, staged
from zonemta_py.delivery.report_composer import Bounce, apply_bounce_function
from zonemta_py.policies import Envelope
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step
from zonemta_py.smtp.headers import is_header
from zonemta_py.smtp.transparency import DotDecoder, DotEncoder, LineCheck, with_crlf

TWO = b"first\n.\r\nMAIL FROM:<forged@x.example>\r\nRCPT TO:<v@x.example>\r\nDATA\r\nsecond\n"
BOUNCE = Bounce("0" * 24, "s@a.example", (), b"Subject: x\r\n", b"Subject: report\r\n", b"sorry\r\n")


@given(st.binary(max_size=200))
def test_any_body(body: bytes) -> None:
    """The body of a report has only CRLF, and survives the wire as one message."""
    changed = apply_bounce_function(lambda: lambda bounce: bounce._replace(body=body), BOUNCE)
    assert changed is not None
    check = LineCheck(10_000)
    check.feed(changed.body)
    check.finish()
    assert not check.bare
    assert with_crlf(changed.body) == changed.body
    encoder, decoder = DotEncoder(), DotDecoder()
    received = decoder.feed(encoder.feed(changed.body) + encoder.finish())
    assert decoder.done
    assert decoder.trailing == b""
    assert received.removesuffix(b"\r\n") == changed.body.removesuffix(b"\r\n")


@pytest.mark.parametrize(
    "header",
    [b"X: a\nY: b\r\n", b"X: a\r\n\nY: b\r\n", b"X: a\rY: b\r\n", b"X: a\n.\r\nMAIL FROM:<>\r\n", b"X: \0\r\n"],
)  # fmt: skip
def test_headers_with_other_line_ends(header: bytes) -> None:
    assert not is_header(header)
    changed = apply_bounce_function(lambda: lambda bounce: bounce._replace(header=header), BOUNCE)
    assert changed is BOUNCE


def test_the_receiver_of_a_report() -> None:
    """``to`` counts, if it is an address."""
    other = apply_bounce_function(lambda: lambda bounce: bounce._replace(to="ops@A.example"), BOUNCE)
    assert other is not None
    assert other.to == "ops@a.example"
    assert apply_bounce_function(lambda: lambda b: b._replace(to="no\r\naddress"), BOUNCE) is BOUNCE


async def test_one_report_on_the_wire(directory: Path) -> None:
    """The receiver gets one message from a function that writes two, at the address that it chose."""

    def rework(bounce: Bounce) -> Bounce:
        return bounce._replace(body=TWO, to="postmaster@a.example")

    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        await stage.receiver("b.example", Rule(Step.RCPT, reply="550 5.1.1 no"))
        async with Relay(stage.config(), bounce=rework) as relay:
            await relay.enqueue("s@a.example", ["c@b.example"], b"Subject: x\r\n\r\nhello\r\n")
            await until(lambda: home.tally.messages, "the report")
        assert [message.recipients for message in home.messages] == [["postmaster@a.example"]]
        assert home.messages[0].data.endswith(with_crlf(TWO))


async def test_a_policy_that_writes_a_bare_lf(directory: Path) -> None:
    """The message is refused; nothing of it is sent."""

    def policy(envelope: Envelope) -> Sequence[Envelope]:
        envelope.header = b"X-List: a\n.\r\n" + envelope.header
        return [envelope]

    async with staged(directory) as stage:
        await stage.receiver("a.example")
        async with Relay(stage.config(processes=ONE_PROCESS), policies=[policy]) as relay:
            with pytest.raises(Exception, match=r"^421 4\.3\.0"):
                await relay.enqueue("s@a.example", ["c@a.example"], b"Subject: x\r\n\r\nhello\r\n")
