"""What is remembered of peers: by address and port, for an hour, until it works again."""

from zonemta_py.config.schema import PeerSettings
from zonemta_py.delivery.session_opener import BROKEN_S, Peers
from zonemta_py.smtp.reply import Reply

HOST, AT, OTHER_PORT = "mx.example", ("192.0.2.1", 25), ("192.0.2.1", 587)


def test_a_handshake_that_fails_is_made_again() -> None:
    """Once; a second failure in the hour is believed, at that port only."""
    peers = Peers({})
    assert peers.handshake_failed(AT, 0.0)
    assert peers.may_encrypt(HOST, AT, 1.0, repeats=False)
    assert not peers.handshake_failed(AT, 1.0)
    assert not peers.may_encrypt(HOST, AT, 2.0, repeats=False)
    assert peers.may_encrypt(HOST, AT, 2.0, repeats=True), "where another connection may follow"
    assert peers.may_encrypt(HOST, OTHER_PORT, 2.0, repeats=False)
    assert peers.may_encrypt(HOST, AT, 2.0 + BROKEN_S, repeats=False)
    assert peers.handshake_failed(AT, 2.0 + 2 * BROKEN_S)


def test_a_session_with_tls_ends_what_failed() -> None:
    peers = Peers({})
    for _ in range(2):
        peers.handshake_failed(AT, 0.0)
    peers.encrypted(AT)
    assert peers.may_encrypt(HOST, AT, 1.0, repeats=False)
    assert peers.handshake_failed(AT, 1.0), "it counts from the first again"


def test_a_refusal_of_mail_in_a_used_session() -> None:
    """It is asked again in a new one, unless a new one had the same answer in the last hour."""
    peers, reply = Peers({}), Reply(554, "5.7.0", "no 1")
    assert peers.refuses_session(AT, "s@a.example", reply, 0.0, is_new=False)
    assert not peers.refuses_session(AT, "s@a.example", reply, 1.0, is_new=True)
    assert not peers.refuses_session(AT, "s@a.example", Reply(554, "5.7.0", "no 2"), 2.0, is_new=False)
    assert peers.refuses_session(AT, "s@a.example", Reply(503, "5.5.1", "what"), 2.0, is_new=False)
    assert peers.refuses_session(OTHER_PORT, "s@a.example", reply, 2.0, is_new=False)
    assert peers.refuses_session(AT, "s@a.example", reply, 2.0 + BROKEN_S, is_new=False)


def test_pipelining_and_settings() -> None:
    peers = Peers(
        {"*.example": PeerSettings(pipelining=False), "192.0.2.9": PeerSettings(starttls=False)}
    )
    assert not peers.may_pipeline(HOST, AT, 0.0)
    assert peers.may_pipeline("mx.test", AT, 0.0)
    peers.pipelining_broke(AT, 0.0)
    assert not peers.may_pipeline("mx.test", AT, 1.0)
    assert peers.may_pipeline("mx.test", OTHER_PORT, 1.0)
    assert not peers.may_encrypt("mx.test", ("192.0.2.9", 25), 0.0, repeats=True)
