"""Every frame of both protocols survives encoding; anything else is QueueCorrupt."""

from types import UnionType
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.codec import fields_of, pack
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, EgressOrder
from zonemta_py.processes import receiver_protocol, sender_protocol
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format.records import DeliveryOptions, IdempotencyRecord, Origin
from zonemta_py.queue.intake_limits import LimitedClient, Use
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.transports.pipelining import DsnOptions
from zonemta_py.transports.tracing import TraceLine

TEXT = st.text(max_size=20)
BYTES = st.binary(max_size=50)
NUMBER = st.integers(0, 2**63)
FLAG = st.booleans()


def lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=4)


ATTEMPT = st.builds(Attempt, TEXT, NUMBER, TEXT, TEXT, TEXT, TEXT, TEXT, FLAG, NUMBER, FLAG, FLAG, FLAG)
RECORD = st.builds(IdempotencyRecord, NUMBER, NUMBER, TEXT, BYTES)
PAIR = st.tuples(st.integers(-9, 9), st.integers(-9, 9))
ORDER = st.builds(
    EgressOrder, TEXT, st.none() | TEXT, st.none() | TEXT, st.integers(-1, 9), NUMBER, TEXT, PAIR
)
MX_ANSWER = st.builds(MxAnswer, lists(TEXT).map(tuple), FLAG, FLAG)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBER,
    float: st.floats(allow_nan=False),
    str: TEXT,
    bytes: BYTES,
    bool: FLAG,
    bytes | None: st.none() | BYTES,
    list[int]: lists(NUMBER),
    list[str]: lists(TEXT),
    list[tuple[str, str]]: lists(st.tuples(TEXT, TEXT)),
    list[tuple[bytes, bytes]]: lists(st.tuples(BYTES, BYTES)),
    tuple[tuple[str, str], ...]: lists(st.tuples(TEXT, TEXT)).map(tuple),
    IdempotencyRecord | None: st.none() | RECORD,
    LimitedClient: st.builds(LimitedClient, TEXT, TEXT, TEXT),
    Use: st.builds(Use, NUMBER, NUMBER, NUMBER, NUMBER),
    DeliveryRequest: st.builds(
        DeliveryRequest, TEXT, TEXT, TEXT, TEXT, lists(TEXT), BYTES, NUMBER, FLAG, FLAG,
        st.none() | st.builds(DsnOptions, TEXT, lists(TEXT)),
        PAIR, BYTES, FLAG, TEXT, st.none() | ORDER, FLAG,
    ),
    DeliveryResult | None: st.none()
    | st.builds(
        DeliveryResult, lists(st.none() | ATTEMPT), st.none() | ATTEMPT, FLAG, FLAG, FLAG, NUMBER, NUMBER, FLAG,
        st.none() | MX_ANSWER,
    ),
    MxAnswer: MX_ANSWER,
    tuple[str, str]: st.tuples(TEXT, TEXT),
    tuple[int, int]: PAIR,
    TraceLine: st.builds(
        TraceLine, NUMBER, lists(TEXT).map(tuple), TEXT, TEXT, TEXT, TEXT, TEXT, TEXT
    ),
    NewMessage: st.builds(
        NewMessage, TEXT, BYTES, lists(st.builds(NewRecipient, TEXT, TEXT, TEXT, NUMBER, TEXT)),
        st.builds(Origin, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT), TEXT, FLAG, FLAG, TEXT, TEXT, TEXT,
        st.none() | st.tuples(TEXT, RECORD), BYTES, TEXT, lists(TEXT).map(tuple),
        st.builds(DeliveryOptions, NUMBER, NUMBER, FLAG, NUMBER, TEXT, FLAG), TEXT,
    ),
}  # fmt: skip


def frames_of(protocol: Any) -> st.SearchStrategy[Any]:
    """Any frame of a protocol, made from the types of its fields."""
    assert isinstance(protocol.Frame, UnionType)
    kinds: Any = get_args(protocol.Frame)
    return st.sampled_from(kinds).flatmap(
        lambda kind: st.builds(kind, *(VALUES[field.type] for field in fields_of(kind)))
    )


@given(frames_of(receiver_protocol))
def test_receiver_frames(frame: Any) -> None:
    assert receiver_protocol.decode(pack(frame)) == frame


@given(frames_of(sender_protocol))
def test_sender_frames(frame: Any) -> None:
    assert sender_protocol.decode(pack(frame)) == frame


@pytest.mark.parametrize("protocol", [receiver_protocol, sender_protocol])
@given(data=BYTES)
def test_anything_else_is_corrupt(protocol: Any, data: bytes) -> None:
    try:
        frame = protocol.decode(data)
    except QueueCorrupt:
        return
    assert protocol.decode(pack(frame)) == frame


@pytest.mark.parametrize("protocol", [receiver_protocol, sender_protocol])
def test_a_wrong_tag_or_type(protocol: Any) -> None:
    for wrong in (b"", b"\xc1", pack([99, 1]), pack([3, "one"]), pack({"number": 1})):
        with pytest.raises(QueueCorrupt):
            protocol.decode(wrong)


def test_the_wire_format() -> None:
    """The tags are fixed: names of frames may change, what is sent may not."""
    tags = {
        protocol: {kind.__name__: kind.__struct_config__.tag for kind in get_args(protocol.Frame)}
        for protocol in (receiver_protocol, sender_protocol)
    }
    assert tags[receiver_protocol] == {
        "Welcome": 1, "Configure": 2, "CommitResult": 3, "KeyState": 4, "Stop": 5, "SpaceLeft": 6,
        "SuspendedTenants": 7, "ChargeResult": 8, "VerifiedDomains": 9, "LogLevel": 10, "Ready": 11,
        "Write": 12, "Accept": 13, "Abort": 14, "RecordEvent": 15, "LookUpKey": 16, "ReleaseKey": 17,
        "Drained": 18, "ChargeUse": 19, "OpenSessions": 20, "SetTraces": 21, "Traced": 22,
    }  # fmt: skip
    assert tags[sender_protocol] == {
        "Configure": 1, "Deliver": 2, "Durable": 3, "Chunk": 4, "Trim": 5, "Cancel": 6,
        "HostStatus": 7, "ClearUnreachable": 8, "LogLevel": 10, "SessionOpened": 11, "FetchChunk": 12, "Done": 13,
        "IdleSessions": 14, "Trimmed": 15, "Resolve": 9, "Resolved": 16, "SetTraces": 21, "Traced": 22,
    }  # fmt: skip
