"""Point 5: a reply about the sender or our account lists no recipient; one about the recipient does."""

import pytest

from zonemta_py.config.reply_rules import make_classifier
from zonemta_py.core.model import Attempt
from zonemta_py.pipeline.events.replies import class_of
from zonemta_py.queue.outcome import classify_attempts
from zonemta_py.smtp.reply import make_reply
from zonemta_py.smtp.reply_class import GONE, ReplyClass, subject
from zonemta_py.smtp.verdict import Phase, Verdict, verdict

NOT_OF_THE_RECIPIENT = """\
553 5.1.8 Sender address rejected: Domain not found
550 5.1.8 cannot find your domain
553 5.1.8 MX for news.example points to localhost
553 5.1.8 <news@sender.example>: Domain of sender address news@sender.example does not exist
550 5.1.0 <news@sender.example>: Sender address rejected: User unknown in relay recipient table
550 5.1.0 <news@sender.example>: Sender address rejected: undeliverable address: host mx.sender.example said: 550 5.1.1 User unknown
550 5.7.1 Message rejected: sender domain does not exist
550 5.7.1 Your account is disabled for sending
550 5.7.1 Your account has been suspended for sending spam
550 5.7.1 The sender's account is disabled
550 5.7.1 Sender account does not exist
550 5.7.1 Sending account is inactive
550 5.2.1 Sender's mailbox disabled
550 5.2.1 The account sending this message is disabled
550 5.1.1 Sender user unknown
550 5.1.7 The sender's address was invalid
550 5.7.1 Unknown sending user
550 5.7.1 user news@sender.example is not authorised to send
550 5.7.1 Mailbox news@sender.example disabled for sending due to abuse
550 5.7.0 Mail from your mailbox is blocked: account closed
550 5.7.1 The account you are using to send is unknown
550 5.7.1 The user or domain that you are sending from does not exist
550 5.7.1 Return path user does not exist
550 5.7.1 The return address does not exist
550 5.7.1 Client account expired
550 5.7.1 Authenticated user is disabled
550 5.7.1 Unauthenticated email from x.example is not accepted: no such account authorised
550 5.7.1 Client host rejected: cannot find your hostname, domain not found
550 Verification failed for <news@sender.example>: no such user
553 sorry, your envelope sender domain must exist (#5.7.1)
554 5.7.1 Your mail domain not found in DNS
550 5.1.8 Your domain does not exist
550 5.7.1 Your domain is suspended
554 5.7.0 Your sending account has been locked
550 5.7.1 Your organization's account is disabled
550 5.7.1 Your account does not exist
550 5.7.1 Sending mail from this account has been disabled
550 5.7.8 User account is locked, cannot send
550 5.1.1 SMTP AUTH user unknown
550 5.7.1 Submitting user unknown
550 5.7.1 the sender, news@sender.example, does not exist
550 From: address user unknown
550 5.7.1 Bounce address does not exist
550 5.1.8 Access denied, bad outbound sender AS(42004)
550 5.7.501 Service unavailable. Spam abuse detected from your account
550 5.7.1 Customer account suspended
550 5.7.1 Customer account has been suspended for abuse
550 5.7.1 Tenant account is disabled
550 5.7.1 Account suspended for spamming
550 Account of sender.example is disabled for sending
535 5.7.8 Error: authentication failed: user not found
550 authentication failed: user not found
550 5.7.1 login failed: no such user
550 5.7.8 invalid credentials: user unknown
550 SASL user unknown
550 No such account authorised to send for x
550 5.7.1 No account authorized to send for x.example
550 Null sender: user unknown
550 Sender: no such user
550 Return-Path: user unknown
550 Bounce address: user unknown
550 Author address does not exist
550 5.7.1 Originating account disabled
550 The From header address does not exist
550 The Reply-To header address does not exist
550 The domain in your From header does not exist
550 5.7.1 Recipient address rejected: Please see http://www.openspf.org/Why?id=x
554 5.7.1 <bob@dest.example>: Recipient address rejected: Please see http://www.openspf.net/Why?s=mfrom;id=a%40b;ip=192.0.2.1
550 <bob@dest.example>: Recipient address rejected: Please see https://mx.example/550
550 5.7.1 <bob@dest.example>: Recipient address rejected: https://mx.example/why""".splitlines()
OF_THE_RECIPIENT = """\
550 5.4.1 Recipient address rejected: Access denied. AS(201806281)
550 #5.1.0 Address rejected
550 5.1.1 The email account that you tried to reach does not exist
550 5.2.1 The email account that you tried to reach is disabled
550 5.1.1 <a@dest.example>: Recipient address rejected: User unknown in virtual mailbox table
550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup
554 delivery error: dd This user doesn't have a yahoo.com account
550 5.1.1 sorry, no mailbox here by that name
550 5.2.1 This mailbox is inactive
550 5.1.1 This account has been disabled or discontinued
550 5.1.2 Host or domain name not found
550 No such user here
550 5.1.1 <bob@x>: user unknown
550 5.1.1 <bob@dest.example>: user unknown
550 5.1.1 could not verify <bob@dest.example>: user unknown
550 5.2.1 account suspended
550 5.2.1 The customer account is suspended
550 Account of bob@dest.example is disabled
550 Account suspended
550 No such account here
550 User unknown; null sender accepted only for bounces
550 5.1.1 Verification failed for recipient: user unknown
550 5.1.1 <bob@dest.example>: Recipient address rejected: Please see https://mx.example/550""".splitlines()


@pytest.mark.parametrize("phase", ["rcpt", "data", "dot", "unknown"])
def test_which_replies_are_about_the_recipient(phase: str) -> None:
    """By the class that the relay gives, and for events that have none."""
    classifier = make_classifier(None)
    wrong = []
    for text in (*NOT_OF_THE_RECIPIENT, *OF_THE_RECIPIENT):
        reply = make_reply(int(text[:3]), text[4:])
        given = classifier.classify(phase, reply.code, reply.status, reply.text)
        found = class_of(None, phase, reply.code, reply.status, reply.text)
        if found != given or (found in GONE) != (text in OF_THE_RECIPIENT):
            wrong.append(f"{found}: {text}")
    assert wrong == []


GREYLISTED = """\
550 greylisted
550 5.7.1 Greylisting in effect, please come back later
554 5.7.1 <bob@dest.example>: Recipient address rejected: Greylisted, see http://postgrey.schweikert.ch/help/x.html
550 5.7.1 greylisting, try again later
550 You have been grey-listed, try again in 5 minutes""".splitlines()
TEMPORARY = """\
550 Sorry, temporarily rejected
550 5.1.1 temporarily rejected, try again later
550 Recipient temporarily rejected
554 Message refused temporarily
550 temporarily rejected due to the moon
550 Try again later""".splitlines()
NOT_GREYLISTED = """\
550 mail from you is not greylisted
550 User unknown (greylisting is not the reason)
550 5.1.1 User unknown, greylisting failed
550 Blacklisted, not greylisted""".splitlines()


@pytest.mark.parametrize("phase", [Phase.RCPT, Phase.DATA, Phase.DOT])
def test_a_5xx_for_the_moment(phase: Phase) -> None:
    """Greylisting is tried again; what else is said to be temporary is final, and lists no recipient."""
    classifier, found = make_classifier(None), dict[str, tuple[Verdict, bool]]()
    for text in (*GREYLISTED, *TEMPORARY, *NOT_GREYLISTED):
        reply = make_reply(int(text[:3]), text[4:])
        reply_class = classifier.classify(phase, reply.code, reply.status, reply.text)
        about = subject(phase, reply.code, reply.status, reply_class)
        found[text] = verdict(reply, phase, about), reply_class == ReplyClass.GREYLISTED
        assert reply_class not in GONE or text in NOT_GREYLISTED, text
    assert {found[each] for each in GREYLISTED} == {(Verdict.DEFERRED, True)}
    assert {found[each] for each in (*TEMPORARY, *NOT_GREYLISTED)} == {(Verdict.FAILED, False)}


SENDER = "news@sender.example"
OF_THE_SENDER = """\
550 5.1.1 could not verify <news@sender.example>: user unknown
550 5.1.1 <NEWS@sender.example>: user unknown
550 5.1.1 news@sender.example: no such user here
550 5.1.1 user unknown: <news@sender.example>
550 5.2.1 <news@sender.example> account disabled
550 5.1.1 <news+bob=dest.example@sender.example>: user unknown""".splitlines()
OF_ANOTHER = """\
550 5.1.1 could not verify <bob@dest.example>: user unknown
550 5.1.1 <news@sender.example> to <bob@dest.example>: user unknown
550 5.1.1 <news2@sender.example>: user unknown
550 5.1.1 user unknown""".splitlines()


def test_a_reply_that_names_the_sender_alone_is_about_the_sender() -> None:
    """No rule can know it from the words; another address in it, or none, and it stays with the recipient."""
    classifier = make_classifier(None)
    for text in (*OF_THE_SENDER, *OF_ANOTHER):
        reply = make_reply(550, text[4:])
        attempt = Attempt("rcpt", 550, reply.status, reply.text)
        [of_sender] = classify_attempts(classifier, [attempt], "", SENDER)
        [of_report] = classify_attempts(classifier, [attempt], "", "")
        assert of_report is not None and of_report.reply_class in GONE, text
        wanted = ReplyClass.INVALID_SENDER if text in OF_THE_SENDER else ReplyClass.INVALID_RECIPIENT
        assert of_sender is not None and of_sender.reply_class == wanted, text
