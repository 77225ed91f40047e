"""Templates of replies."""

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.report.templates import ReplyTemplates, masked, mine_templates


def test_masked() -> None:
    reply = "<a.b@x.example>: try from 10.1.2.3 again in 300 seconds, see https://h.example/x?y=1 (id 4Ab9Zx-77q1)"
    assert masked(reply) == "<address>: try from <ip> again in <n> seconds, see <url> (id <id>)"


def test_templates() -> None:
    """Similar replies share a template, with <*> for words that differ; the number of words is the same."""
    replies = [
        "user alice unknown in table virtual",
        "user bob unknown in table virtual",
        "user carol unknown in table hosts",
        "greylisted, come back later today please",
        "no",
    ]
    found = mine_templates(replies)
    assert {found[reply] for reply in replies[:3]} == {"user <*> unknown in table <*>"}
    assert found[replies[3]] == replies[3]
    assert found["no"] == "no"
    assert ReplyTemplates().of("never seen") == "never seen"


@given(st.lists(st.text(max_size=60), max_size=30))
def test_mining_is_total(replies: list[str]) -> None:
    """Every reply has a template with the same number of words; the result is deterministic."""
    found = mine_templates(replies)
    assert set(found) == set(replies)
    assert all(len(t.split()) == len(k.split()) for k, t in found.items())
    assert mine_templates(replies) == found
