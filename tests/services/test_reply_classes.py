"""The class of a reply, from the server to the event, the metric, the API and the rules that a reload changes."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import logged_events, relaying, send, staged
from tests.services.test_admin_http import post, samples, serving
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.model import OutcomeKind
from zonemta_py.sink.script import Rule, Step

REPLIES = {
    "full": "452 4.2.2 Mailbox full",
    "gone": "550 5.1.1 User unknown",
    "odd": "554 5.0.0 the moon is wrong",
}
RULES = "rules: [{class: policy, pattern: the moon}]"


async def test_events_metrics_and_api(directory: Path) -> None:
    """In one settle each outcome has the class of its own reply; a delivery has none."""
    async with staged(directory) as stage:
        rules = [Rule(Step.RCPT, recipient=f"{name}*", reply=reply) for name, reply in REPLIES.items()]
        await stage.receiver("a.example", *rules)
        await stage.receiver("sender.example")
        (directory / "own.yaml").write_text(RULES)
        zone = {"retry": {"delays": ["1h"]}}
        classify = {"file": str(directory / "own.yaml")}
        async with serving(stage, zones={"default": zone}, classify=classify) as (relay, client):
            await send(relay, ["ok@a.example", *(f"{name}@a.example" for name in REPLIES)])
            outcomes = relay.queue.traffic.outcomes
            await until(lambda: outcomes.get(("default", OutcomeKind.BOUNCED, 5)) == 2, "both bounces")
            await until(lambda: outcomes.get(("default", OutcomeKind.DEFERRED, 4)) == 1, "the delay")
            found = await samples(client)
            for labels in (
                ("bounced", "policy"),
                ("bounced", "invalid_recipient"),
                ("deferred", "mailbox_full"),
            ):
                assert found["zonemta_failures_total", frozenset({"default", *labels})] == 1
            status, answer = await post(client, "/api/v1/classify", {"text": "554 the moon"})
            assert status == 200
            assert answer["rows"][0]["class"] == "policy"
            assert answer["rows"][0]["file"] == str(directory / "own.yaml")
            assert (await post(client, "/api/v1/classify", {"text": "no code"}))[0] == 409
            assert (await post(client, "/api/v1/classify", {"txt": "550"}))[0] == 400
    classes = {
        each["recipient"].partition("@")[0]: each["class"]
        for name in ("delivered", "deferred", "bounced")
        for each in logged_events(directory, name)
    }
    assert classes == {"ok": "", "full": "mailbox_full", "gone": "invalid_recipient", "odd": "policy"}


async def test_a_host_that_cannot_be_reached_and_a_greeting(directory: Path) -> None:
    """A local reason has a class by its status, a refused connection that of the reply to it."""
    async with staged(directory) as stage:
        await stage.receiver(
            "a.example", Rule(Step.CONNECT, reply="554 5.7.1 your IP has a poor reputation")
        )
        zone = {"retry": {"delays": ["1h"]}}
        async with relaying(stage.config(zones={"default": zone})) as relay:
            await send(relay, ["x@a.example"])
            await send(relay, ["y@nowhere.example"])
            await until(lambda: len(relay.queue.traffic.classes) >= 2, "both failures")
    found = {each["recipient"]: each["class"] for each in logged_events(directory, "deferred")}
    found |= {each["recipient"]: each["class"] for each in logged_events(directory, "bounced")}
    assert found["x@a.example"] == "blocked"
    assert found["y@nowhere.example"] == "bad_domain"


async def test_a_reload_reads_the_rules_again(directory: Path) -> None:
    """Rules that cannot be used are refused, and the old ones stay."""
    async with staged(directory) as stage:
        rules = directory / "own.yaml"
        rules.write_text(RULES)
        async with relaying(stage.config(classify={"file": str(rules)})) as relay:
            ask = ("dot", 554, "", "the moon")
            assert relay.queue.classifier.classify(*ask) == "policy"
            rules.write_text("rules: [{class: nothing, pattern: x}]")
            with pytest.raises(ConfigError, match=r"own.yaml:1: rules\[0\].class: found 'nothing'"):
                await relay.reload(relay.config)
            assert relay.queue.classifier.classify(*ask) == "policy"
            rules.write_text("rules: [{class: content, pattern: the moon}]")
            await relay.reload(relay.config)
            assert relay.queue.classifier.classify(*ask) == "content"


async def test_a_reply_that_names_the_sender(directory: Path) -> None:
    """It is about the sender; in mail to oneself about the recipient."""
    reply = "550 5.1.1 could not verify <s@a.example>: user unknown"
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, reply=reply))
        async with relaying(stage.config()) as relay:
            for recipient in ("x@a.example", "s@a.example"):
                await send(relay, [recipient], sender="s@a.example")
            await until(lambda: len(relay.queue.traffic.classes) >= 2, "both failures")
    found = {each["recipient"]: each["class"] for each in logged_events(directory, "bounced")}
    assert found["x@a.example"] == "invalid_sender"
    assert found["s@a.example"] == "invalid_recipient"
