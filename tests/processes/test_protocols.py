"""Every frame of both protocols survives encoding; anything else is QueueCorrupt."""

from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.processes import receiver_protocol, sender_protocol

BYTES = st.binary(max_size=50)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-9, 9) | st.integers(0, 2**63),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: BYTES,
    bool: st.booleans(),
    None: st.none(),
    type(None): st.none(),
}


@cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that frames have: every field of a record is generated, those with a default too."""
    if hint in PLAIN:
        return PLAIN[hint]
    parts = get_args(hint)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return st.one_of(*(values_of(part) for part in parts))
    if origin is tuple and parts[-1] is not Ellipsis:
        return st.tuples(*(values_of(part) for part in parts))
    if origin in (list, tuple, Sequence):
        several = st.lists(values_of(parts[0]), max_size=4)
        return several.map(tuple) if origin is tuple else several
    return st.builds(hint, **{name: values_of(part) for name, part in get_type_hints(hint).items()})


def frames_of(protocol: Any) -> st.SearchStrategy[Any]:
    """Any frame of a protocol, made from the types of its fields."""
    assert isinstance(protocol.Frame, UnionType)
    return values_of(protocol.Frame)


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
        "Drained": 18, "ChargeUse": 19, "OpenSessions": 20, "SetTraces": 21, "Traced": 22, "WrongPassword": 23,
        "LoggedIn": 24, "CountSession": 25, "UncountSession": 26,
    }  # fmt: skip
    assert tags[sender_protocol] == {
        "Configure": 1, "Deliver": 2, "Durable": 3, "Chunk": 4, "Trim": 5, "Cancel": 6,
        "HostStatus": 7, "ClearUnreachable": 8, "LogLevel": 10, "SessionOpened": 11, "FetchChunk": 12, "Done": 13,
        "IdleSessions": 14, "Trimmed": 15, "Resolve": 9, "Resolved": 16, "Configured": 17, "SetTraces": 21, "Traced": 22,
    }  # fmt: skip
