"""Text of strangers: nothing commands a terminal, nothing turns the direction of writing, no secret of a URL is shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.text import (
    arguments_without_secrets,
    escaped,
    escaped_json,
    one_line,
    url_as_name,
    without_secrets,
)

HOSTILE = "a\x1b[2J\x9b2J\u202eb\u2066c\x7f\u2028\U000e0001\ud800é"


def test_by_hand() -> None:
    assert escaped("a\x1b\x9b\u202e\U000e0001") == "a\\x1b\\x9b\\u202e\\U000e0001"
    assert escaped("a\n\tb", keep="\n\t") == "a\n\tb"
    assert (
        escaped_json('{"a":"\x9b\u202e\x7f\U000e0001"}') == '{"a":"\\u009b\\u202e\\u007f\\udb40\\udc01"}'
    )
    assert one_line("a\r\nb") == "a  b"
    assert escaped("Zoë 日本 🙂") == one_line("Zoë 日本 🙂") == "Zoë 日本 🙂"


@given(st.text(max_size=40) | st.just(HOSTILE))
def test_all_are_printable(text: str) -> None:
    assert escaped(text).isprintable()
    assert one_line(text).isprintable()
    document = escaped_json(json.dumps(text, ensure_ascii=False))
    assert document.isprintable()
    assert json.loads(document) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_row_is_the_same_for_a_parser(text: str) -> None:
    row = {"name": text, text: [text]}
    assert from_json(escaped_json(to_json(row).decode())) == row


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:secret@127.0.0.1:1/in", "http://127.0.0.1:1/in"), ("redis://:secret@h", "redis://h"),
        ("http://h/a@b", "http://h/a@b"), ("http://u:p%40ss@secret@h:1/x", "http://h:1/x"), ("nonsense", "nonsense"),
        ("https://h/in?token=secret", "https://h/in?token=[secret]"), ("https://h?secret", "https://h?[secret]"),
        ("https://h/in?a=secret&b=secret#secret", "https://h/in?a=[secret]&b=[secret]"),
        ("https://h?to=a@b/secret", "https://h?to=[secret]"),
        ("cannot reach http://u:secret@h/x?key=secret: timed out", "cannot reach http://h/x?key=[secret] timed out"),
        ("--url=https://h/?k=secret", "--url=https://h/?k=[secret]"), ("unix:///run/redis.sock?db=0", "unix:///run/redis.sock?db=[secret]"),
    ],
)  # fmt: skip
def test_secrets_of_urls(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("zones.bulk", "zones.bulk"), ("https://h", "https://h"), ("zones.https://h:8080", "zones.https://h:8080"),
        ("queue.https://u:secret@h/secret?token=secret#secret.x", "queue.https://h…"), ("https://h?secret here", "https://h…"),
        ("https://u:pass/secret@h/", "https://…"), ("https://u:a@secret@h", "https://h"),
    ],
)  # fmt: skip
def test_urls_in_the_place_of_a_name(text: str, shown: str) -> None:
    assert url_as_name(text) == shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--token=hunter2", "-f", "{sender}"], ["--token=[secret]", "-f", "{sender}"]),
        (["password=hunter2 hunter2"], ["password=[secret]"]), (["DB_PASSWORD=hunter2"], ["DB_PASSWORD=[secret]"]),
        (["-H", "Authorization: Bearer hunter2"], ["-H", "Authorization: [secret]"]),
        (["-H", "X-Api-Key:hunter2"], ["-H", "X-Api-Key:[secret]"]), (["--api-key", "hunter2", "x"], ["--api-key", "[secret]", "x"]),
        (["-password", "https://h/?a=hunter2"], ["-password", "[secret]"]), (["--TOKEN"], ["--TOKEN"]),
        (["sh", "-c", "curl --token hunter2 -d x; y"], ["sh", "-c", "curl --token [secret]"]),
        (["--to=https://u:hunter2@h/in?k=hunter2"], ["--to=https://h/in?k=[secret]"]),
        (["--password-file=/etc/p", "--token_file", "/etc/t"], ["--password-file=/etc/p", "--token_file", "/etc/t"]),
        (["deliver", "-d", "{user}", "a=b", "--key=k"], ["deliver", "-d", "{user}", "a=b", "--key=k"]), ([], []),
    ],
)  # fmt: skip
def test_secrets_of_commands(arguments: list[str], shown: list[str]) -> None:
    assert arguments_without_secrets(arguments) == tuple(shown)
