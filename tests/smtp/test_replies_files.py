"""The labelled replies of ``tests/smtp/replies``: their form, their classes, and that the two files share no reply."""

import json
import re
from collections import Counter
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from zonemta_py.smtp.reply_class import ReplyClass

HERE = Path(__file__).parent / "replies"
KEYS = ["code", "status", "text", "class", "provider", "phase", "source"]
PHASES = {"", "connect", "helo", "mail", "rcpt", "data", "dot", "quit"}
NUMBERS_OF_ERRORS = "4.16.55.0/24"  # of Yahoo's; they look like addresses
DOCUMENTATION = [
    ip_network(each)
    for each in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "127.0.0.0/8", NUMBERS_OF_ERRORS)
]
ADDRESS = re.compile(r"(?<![\w.#-])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")


def read(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


FILES = {name: read(name) for name in ("known", "unseen")}


def wrong(reply: dict[str, Any]) -> bool:
    """Whether its form is another one. Only counted, so that no report shows a text of ``unseen``."""
    hosts = [ip_address(each) for each in ADDRESS.findall(reply["text"])]
    return (
        list(reply) != KEYS
        or not 400 <= reply["code"] <= 599
        or re.fullmatch(r"(?:[45]\.\d{1,3}\.\d{1,3})?", reply["status"]) is None
        or not reply["text"].strip()
        or re.match(r"[245]\d\d[ -]", reply["text"]) is not None
        or reply["class"] not in set(ReplyClass)
        or reply["phase"] not in PHASES
        or not reply["source"]
        or any(not any(host in net for net in DOCUMENTATION) for host in hosts)
    )


@pytest.mark.parametrize("name", FILES)
def test_the_form_of_a_line(name: str) -> None:
    assert sum(wrong(reply) for reply in FILES[name]) == 0


def test_the_files_share_no_reply() -> None:
    seen = [
        {(each["code"], each["status"], each["text"].casefold()) for each in replies}
        for replies in FILES.values()
    ]
    assert [len(each) for each in seen] == [len(each) for each in FILES.values()]
    assert not len(seen[0] & seen[1])


def test_the_table_of_the_page_has_the_counts() -> None:
    rows = re.findall(
        r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$", (HERE / "README.md").read_text(), re.M
    )
    known, unseen = (Counter(each["class"] for each in replies) for replies in FILES.values())
    counts = [
        (name, known[name], unseen[name], known[name] + unseen[name]) for name in sorted(known | unseen)
    ]
    assert [(name, *map(int, numbers)) for name, *numbers in rows] == counts
