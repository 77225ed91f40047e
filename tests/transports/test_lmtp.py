"""LMTP: LHLO, and an answer to the final dot for each recipient."""

from tests.kit.smtp_peer import no_wait, open_to, peer, transaction
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.verdict import Phase

LHLO = ["*LHLO me.example", "250-mx\r\n250-PIPELINING\r\n250 8BITMIME\r\n"]
THREE = ["*MAIL", "*RCPT TO:<a@d.example>", "*RCPT TO:<b@d.example>", "*RCPT TO:<c@d.example>", "*DATA"]
TAKEN, FULL = Reply(250, "2.0.0", "taken"), Reply(452, "4.2.2", "full")


async def test_each_recipient_has_its_answer() -> None:
    """One is refused at RCPT, one at the dot, one is delivered; then the session goes on."""
    async with peer(
        "220 hi\r\n", *LHLO, *THREE, "250 ok\r\n250 ok\r\n550 5.1.1 no\r\n250 ok\r\n354 go\r\n", ".",
        "250 2.0.0 taken\r\n452 4.2.2 full\r\n", "*MAIL", "*RCPT", "*DATA", "250 ok\r\n250 ok\r\n354 go\r\n", ".",
        "250 2.0.0 taken\r\n", "*QUIT",
    ) as (port, _):  # fmt: skip
        session = await open_to(port, lmtp=True)
        result = await session.transact(
            transaction("a@d.example", "b@d.example", "c@d.example"), no_wait()
        )
        assert result.answers == [
            (Phase.DOT, TAKEN), (Phase.RCPT, Reply(550, "5.1.1", "no")), (Phase.DOT, FULL)
        ]  # fmt: skip
        again = await session.transact(transaction("a@d.example"), no_wait())
        assert again.answers == [(Phase.DOT, TAKEN)]
        session.close()


async def test_a_peer_that_leaves_between_its_answers() -> None:
    """Its replies count; recipients without a reply are uncertain."""
    async with peer(
        "220 hi\r\n", *LHLO, *THREE, "250 ok\r\n250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n", ".", "250 2.0.0 taken\r\n", "!"
    ) as (port, _):  # fmt: skip
        session = await open_to(port, lmtp=True)
        result = await session.transact(
            transaction("a@d.example", "b@d.example", "c@d.example"), no_wait()
        )
        first, *others = result.answers
        assert first == (Phase.DOT, TAKEN)
        assert [answer and answer[1].code for answer in others] == [0, 0]
        assert result.uncertain
        assert not session.usable
