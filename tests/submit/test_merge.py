"""Merge fields: what a mail program shows is the value of the row, whatever encodes the letter."""

import email
import json
import re
from base64 import b64encode
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.policy import SMTP, default
from email.utils import getaddresses
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zonemta_py.smtp.seven_bit import flat
from zonemta_py.submit.merge import MergeError, Template, UnusableValue

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cn", "Cc", "Co"]), max_size=120)
VALUES = st.one_of(
    NAMES,
    st.sampled_from(
        ["Smith, Ann", "Dept: Sales; North", "Zoë <zoe@other.example>", 'a "quoted" \\ name', "=?utf-8?q?x?=", "=3D=", "id=41f3=42",
         "a&b=<c>'\"", "two\r\nlines\rand\nmore", "{{name}}", " end ", "x" * 3000, "ü" * 700, ".", "", "日本語" * 40, "100%", "\\"]
    ),
)  # fmt: skip
CODINGS = st.sampled_from(
    [("utf-8", "8bit"), ("utf-8", "quoted-printable"), ("utf-8", "base64"), ("us-ascii", "7bit"), ("iso-8859-1", "quoted-printable"),
     ("iso-8859-1", "8bit"), ("iso-8859-1", "base64"), ("iso-2022-jp", "7bit"), ("shift_jis", "base64")]
)  # fmt: skip
PLAIN = "Hello {{name}}, {{name}}!\nhttps://x.example/?t={{ token }}&u=1 and a long line of text that is broken {{name|there}}\n.dot\n"
HTML = (
    '<p title="{{name}}">{{name}}</p>\n<!--[if mso]><b>{{name}}</b><![endif]-->\n'
    '<a href="https://x.example/?t={{token}}&amp;u=1">a link in a line that is longer than 76 characters</a>\n'
)
ROW = {"email": "ann@dest.example", "name": "Ann", "token": "t"}


def rendered(letter: bytes, **row: str) -> bytes:
    header, body = Template(letter).render({**ROW, **row})
    return header + b"\r\n" + body


def read(data: bytes) -> EmailMessage:
    found = email.message_from_bytes(data, policy=default)
    assert isinstance(found, EmailMessage)
    assert not any(part.defects for part in found.walk())
    return found


def text_of(part: Any) -> str:
    """The text of a part, without a merge field that was left."""
    return str(part.get_content()).replace("\r\n", "\n")


class Page(HTMLParser):
    """The texts and the attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.values: dict[str, str | None] = {}
        self.feed(text)
        self.close()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.values.update(attrs)


def letter_of(plain: tuple[str, str], html: tuple[str, str], *, nested: bool) -> bytes:
    """A letter with two texts in two encodings, in a forwarded message if ``nested``."""
    message = EmailMessage()
    message.set_content(PLAIN, charset=plain[0], cte=plain[1])
    message.add_alternative(HTML, subtype="html", charset=html[0], cte=html[1])
    message.add_attachment(b"\x00{{name}}\xff", maintype="application", subtype="pdf", filename="a.pdf")
    head = b"From: News <news@sender.example>\r\nTo: {{name}} <{{email}}>\r\nSubject: For {{name}}!\r\n"
    if not nested:
        return head + message.as_bytes(policy=SMTP)
    outer = EmailMessage()
    outer.set_content("forwarded\n")
    message["X-Note"] = "inside"
    outer.add_attachment(message)
    return head + outer.as_bytes(policy=SMTP)


@settings(max_examples=80, deadline=None)
@given(VALUES, VALUES, CODINGS, CODINGS, st.booleans())
@example("¥100‾", "", ("utf-8", "8bit"), ("shift_jis", "base64"), False)  # as a backslash in Shift_JIS
def test_another_reader_finds_the_values(
    name: str, token: str, plain: tuple[str, str], html: tuple[str, str], nested: bool
) -> None:
    """One address, the name letter for letter, the texts and the link, whatever encodes them."""
    data = rendered(letter_of(plain, html, nested=nested), name=name, token=token)
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert not re.search(rb"(?<!\r)\n|\r(?!\n)", data)
    message = read(data)
    ((shown_name, address),) = getaddresses([str(email.message_from_bytes(data)["to"])])
    assert str(make_header(decode_header(shown_name))) == flat(name)
    assert [each.addr_spec for each in message["to"].addresses] == [address] == ["ann@dest.example"]
    assert flat(message["subject"]) == flat(f"For {flat(name)}!")
    texts = {part.get_content_type(): part for part in message.walk() if not part.is_multipart()}
    shown = name.replace("\r\n", "\n").replace("\r", "\n")
    lines = text_of(texts["text/plain"])
    if nested:
        parts = [part for part in message.walk() if part.get_content_type() == "text/plain"]
        lines = text_of(parts[-1])
    last = "there" if not shown or shown.isspace() else shown
    link = re.search(r"\?t=(\S*)&u=1 and", lines)
    assert link is not None
    assert unquote(link[1]) == token.strip()
    assert lines.startswith(f"Hello {shown}, {shown}!\nhttps://x.example/?t=")
    assert lines.endswith(f"that is broken {last}\n.dot\n")
    page = Page(text_of(texts["text/html"]))
    assert page.values["title"] == shown
    assert "".join(page.texts).startswith(shown)
    query = parse_qs(urlsplit(page.values["href"] or "").query, keep_blank_values=True)
    assert query == {"t": [token.strip()], "u": ["1"]}
    assert texts["application/pdf"].get_content() == b"\x00{{name}}\xff"


@settings(max_examples=60, deadline=None)
@given(CODINGS, CODINGS, st.booleans())
def test_without_fields_no_byte_changes(
    plain: tuple[str, str], html: tuple[str, str], nested: bool
) -> None:
    letter = letter_of(plain, html, nested=nested)
    compiled = Template(re.sub(rb"\{\{.*?\}\}", b"x", letter))
    if not compiled.personal:
        header, body = compiled.render({})
        assert header + b"\r\n" + body == re.sub(rb"\{\{.*?\}\}", b"x", letter)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("To: {{v}}", "ann@dest.example", "ann@dest.example"),
        ("To: {{v}}", ' "Smith, Ann" <ANN@DEST.example>', '"Smith, Ann" <ANN@dest.example>'),
        ("To: {{v}} <{{email}}>", "", "<ann@dest.example>"),
        ("To: {{v}}", "\ufeff\u00a0ann@dest.example\u200b", "ann@dest.example"),
        ("To: {{v|friend, dear}} <{{email}}>", " ", '"friend, dear" <ann@dest.example>'),
        ('To: "{{v}}" <{{email}}>', 'O"Neil', '"O\\"Neil" <ann@dest.example>'),
        ("To: =?utf-8?q?Dear_{{v}}?= <{{email}}>", "Ann", "Dear Ann <ann@dest.example>"),
        ("To: =?utf-8?b?e3t2fX0=?= <{{email}}>", "A, B", '"A, B" <ann@dest.example>'),
        ("Cc: a@x.example, {{v}} <{{email}}>, b@x.example", "A@B", 'a@x.example, "A@B" <ann@dest.example>, b@x.example'),
        ("Cc: Team: {{v}} <{{email}}>;", "A", "Team: A <ann@dest.example>;"),
        ("Reply-To: <reply+{{v}}@x.example>", "41f3", "<reply+41f3@x.example>"),
        ("Reply-To: reply+{{v}}@x.example", "a b", UnusableValue),
        ("Reply-To: {{v}}", "a@x.example, b@x.example", UnusableValue),
        ("Subject: =?utf-8?q?F=C3=BCr_{{v}}?=", "Ann", "=?utf-8?q?F=C3=BCr_Ann?="),
        ("Subject: =?utf-8?q?For_{{?= =?utf-8?q?v}}?=", "Ann", "For Ann"),
        ("Subject: see https://x.example/?t={{v}}", "a b&c", "see https://x.example/?t=a%20b%26c"),
        ("List-Unsubscribe: <https://x.example/u/{{v}}>, <mailto:u@x.example?subject={{v}}>", "a=b,c",
         "<https://x.example/u/a%3Db%2Cc>, <mailto:u@x.example?subject=a%3Db%2Cc>"),
        ("List-Unsubscribe: <{{v}}>", "https://x.example/?a=1&b=2 3", "<https://x.example/?a=1&b=2%203>"),
        ("List-Unsubscribe: <{{v}}>", "JavaScript:alert(1)", UnusableValue),
        ("Message-ID: <{{v}}@x.example>", "a>b", "<a%3Eb@x.example>"),
        ("Message-ID: {{v}}", "a@x.example", "<a@x.example>"),
        ("Message-ID: <{{v}}>", "a", UnusableValue),
        ("Date: {{v}}", "Mon, 1 Jun 2026 10:00:00 +0000", "Mon, 1 Jun 2026 10:00:00 +0000"),
        ("Date: {{v}}", "Märch", UnusableValue),
        ("X-Campaign: {{v}}", "june", "june"),
        ('Content-Disposition: attachment; filename="{{v}}.txt"', 'a"b', 'attachment; filename="a\\"b.txt"'),
        ("Content-Disposition: attachment; filename={{v}}.txt", "ë", "attachment; filename*=utf-8''%C3%AB.txt"),
        ("Subject: {{ }} {{}} {{v}}", "x", "{{ }} {{}} x"),
        ("Subject: %7B%7Bv%7d%7d", "x", "x"),
    ],
)  # fmt: skip
def test_header_fields(field: str, value: str, expected: object) -> None:
    """A value as its place needs it."""
    letter = f"From: a@b.example\n{field}\n\nbody\n".encode()
    if isinstance(expected, type):
        with pytest.raises(
            UnusableValue, match=field.partition(":")[0] if "avaS" not in value else "no"
        ):
            rendered(letter, v=value)
        return
    header = rendered(letter, v=value).partition(b"\r\n\r\n")[0]
    found = header.partition(b"\r\n")[2].replace(b"\r\n", b"").decode()
    assert found.partition(": ")[2] == expected


@pytest.mark.parametrize(
    ("markup", "value", "expected"),
    [
        ("<a href={{v}}>x</a>", "https://x.example/?a=1&b=2", "<a href=https://x.example/?a&#61;1&#38;b&#61;2>x</a>"),
        ("<a href='https://x.example/{{v}}'>x</a>", "a/b'c", "<a href='https://x.example/a%2Fb%27c'>x</a>"),
        ("<a href='https://{{v}}'>x</a>", "x.example/a?b=c", "<a href='https://x.example/a?b=c'>x</a>"),
        ("<a href='mailto:{{v}}'>x</a>", "a@b.example", "<a href='mailto:a%40b.example'>x</a>"),
        ('<a href="https://x.example/?t=%7B%7Bv%7D%7D">x</a>', "a=b", '<a href="https://x.example/?t=a%3Db">x</a>'),
        ("<p class={{v}}>", "a b>", "<p class=a&#32;b&#62;>"),
        ("<!-- {{v}} -->", "--> <b>", "<!-- --&gt; &lt;b&gt; -->"),
        ('<p style="color:{{v}}">', "red;\"}", '<p style="color:red\\3b \\22 \\7d ">'),
        ("<style>a{color:{{v}}}</style>", "red;}</style>", "<style>a{color:red\\3b \\7d \\3c \\2f style\\3e }</style>"),
        ("<p style='background:url({{v}})'>", "https://x.example/a'b?c=(d)&e;f", "<p style='background:url(https://x.example/a%27b?c=%28d%29&amp;e%3Bf)'>"),
        ("<p style=\"background:URL( &quot;https://x.example/?t={{v}}&quot; )\">", "a\");b:url(x", "<p style=\"background:URL( &quot;https://x.example/?t=a%22%29%3Bb%3Aurl%28x&quot; )\">"),
        ("<p style=background:url({{v}});color:{{v}}>", "a&;b", "<p style=background:url(a&#38;&#37;3Bb);color:a&#92;26&#32;&#92;3b&#32;b>"),
        ("<style>/* url( */ a{background:url({{v}})}</style>", "https://x.example/?a&b)", "<style>/* url( */ a{background:url(https://x.example/?a&b%29)}</style>"),
        ('<style>@import "{{v}}";a::after{content:"{{v}}"}</style>', 'a"b', '<style>@import "a%22b";a::after{content:"a\\22 b"}</style>'),
        ("<style>a{background:{{v}}}</style>", "url(//x.example)", "<style>a{background:url\\28 \\2f \\2f x.example\\29 }</style>"),
        ("<style>a::after{content:'\\'url({{v}}'}</style>", "a:b", "<style>a::after{content:'\\'url(a\\3a b'}</style>"),
        ('<script type="application/ld+json">{"n":"{{v}}"}</script>', '</script>"', None),
        ("{{first\n&nbsp;v}}", "x", "x"),
        ("<p>{{v}}</p>", "日本", "<p>&#26085;&#26412;</p>"),
    ],
)  # fmt: skip
def test_html(markup: str, value: str, expected: str | None) -> None:
    letter = f"From: a@b.example\nContent-Type: text/html\n\n{markup}\n".encode()
    row = {"v": value, "first v": value}
    body = rendered(letter, **row).partition(b"\r\n\r\n")[2].decode().removesuffix("\r\n")
    if expected is None:
        (text,) = re.findall("<script[^>]*>(.*)</script>", body)
        assert json.loads(text) == {"n": value}
    else:
        assert body == expected


STYLE = (
    "a{color:{{v}};content:\"{{v}}\";content:'{{v}}';width:calc({{v}} + 1px)/* {{v}} */;background:url({{v}}) url(https://x.example/{{v}})"
    " url( \"{{v}}\") url('https://{{v}}/?t={{v}}')}.b{{v}}{{{v}}:{{v}}}"
)
BREAKING = ["}", "{", ";", ":", ")", "(", "url(", "url(//evil.example)", "expression(", '"', "'", "\\", "\\22", "*/", "/*", "</style>",
            "<!--", "-->", "@import", "!important", "\n", "\r\n", "\x0c", "\0", "&quot;", "&#59;", " onclick=x ", ">", "\u00e9", "a", "0", " "]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(BREAKING), min_size=1, max_size=5).map("".join))
def test_a_value_stays_in_its_place_in_a_style(value: str) -> None:
    """In a style sheet and in attributes: names, strings, comments and URLs end where those of a harmless value end."""
    attribute = STYLE.replace('"', "&quot;")
    page = f"<p style=\"{attribute}\"><style>{STYLE}</style><i style='{STYLE.replace(chr(39), '&#39;')}'><b style=a:{{{{v}}}};b:url({{{{v}}}})>"

    def shown(kind: str, markup: str, value: str) -> list[str]:
        letter = f"From: a@b.example\nContent-Type: {kind}\n\n{markup}\n".encode()
        text = text_of(read(rendered(letter, v=value))).removesuffix("\n")
        if kind == "text/css":
            return [text]
        found = Styles(text)
        assert found.names == ["style"] * 3
        return found.styles

    for kind, markup in (("text/html", page), ("text/css", STYLE)):
        for found, plain in zip(shown(kind, markup, value), shown(kind, markup, "MARK"), strict=True):
            # The value is what no longer differs from the harmless one: safe characters, escapes and percent-encoding.
            safe = r"(?:[A-Za-z0-9 #%.,\-]|\\[0-9a-f]{1,6} |[\[\]:/?#@!$&*+=~_])*"
            assert re.fullmatch(re.escape(plain).replace("MARK", safe), found)
            bare = found[: found.index(";")]
            assert not re.search(r"[()@!/'\"]", bare)
            if kind == "text/css":
                url = re.search(r"url\(https://x\.example/([^)]*)\)", found)
                assert url is not None
                assert unquote(url[1]) == value.strip()
                string = re.search(r'content:"([^"]*)"', found)
                assert string is not None
                unescaped = re.sub(r"\\([0-9a-f]+) ", lambda each: chr(int(each[1], 16)), string[1])
                assert unescaped == " ".join(value.split())


class Styles(HTMLParser):
    """The style sheets of a page, and the attributes with styles; ``names`` of all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.styles: list[str] = []
        self.names: list[str] = []
        self.feed(text)
        self.close()

    def handle_data(self, data: str) -> None:
        self.styles.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names += [name for name, _ in attrs]
        self.styles += [value or "" for _, value in attrs]


SIGNED = "Content-Type: multipart/signed; boundary=b\n\n--b\n\nHello {{v}}\n--b\nContent-Type: application/pgp-signature\n\nx\n--b--\n"
UNREACHABLE = [
    ("Content-Type: text/html\n\n<script>x = '{{v}}'</script>\n", "{{v}}: a place in text/html where no value can be written"),
    ("Content-Type: text/html\n\n<a {{v}}>\n", "{{v}}: a place in text/html"),
    ("Content-Type: text/html\n\n<a onclick='{{v}}'>\n", "{{v}}: a place in text/html"),
    ("Content-Type: application/json\n\n{\"a\": \"{{v}}\"}\n", "{{v}}: the body is application/json, not a text"),
    ("Content-Type: text/plain; charset=x-none\n\n{{v}}\n", "{{v}}: the body cannot be read: unknown encoding: x-none"),
    ("Content-Type: text/plain\nContent-Transfer-Encoding: x-uuencode\n\n{{v}}\n", "{{v}}: the body cannot be read: the encoding x-uu"),
    (f"Content-Type: text/plain; charset=utf-16\nContent-Transfer-Encoding: base64\n\n{b64encode('{{v}}'.encode('utf-16') + b'x').decode()}\n",
     "{{v}}: the body cannot be read: 'utf-16"),
    ("Content-Type: text/plain; charset={{v}}\n\nx\n", "{{v}}: Content-Type can have it in a file name only"),
    (SIGNED, "{{v}}: the body: the parts of multipart/signed cannot change"),
    ("DKIM-Signature: a={{v}}\n\nx\n", "{{v}}: DKIM-Signature cannot differ between recipients"),
    ("To: a@b.example ({{v}})\n\nx\n", "{{v}}: a comment in To"),
    ("To: {{v}}: a@b.example;\n\nx\n", "{{v}}: the name of a group in To"),
    ("X-{{v}}: a\n\nx\n", "{{v}}: the name of a header field"),
    ("Subject: x\nno field {{v}}\n\nx\n", "{{v}}: a line in the header that is no header field"),
    ("List-Unsubscribe: {{v}}, <https://x.example>\n\nx\n", "{{v}}: outside of the URLs of List-Unsubscribe"),
    ("Content-Type: multipart/mixed; boundary=b\n\nHello {{v}}\n--b\n\nx\n--b--\n{{w}}\n", "{{v}}: the body: before its parts"),
    ("Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: message/rfc822\n\nContent-Type: {{v}}\n\nx\n--b--\n",
     "{{v}}: Content-Type can have it in a file name only, in the message in part 1 of the body"),
]  # fmt: skip


@pytest.mark.parametrize(("letter", "problem"), UNREACHABLE)
def test_fields_that_cannot_be_reached_are_named(letter: str, problem: str) -> None:
    template = Template(f"From: a@b.example\n{letter}".encode())
    assert any(each.startswith(problem) for each in template.problems), template.problems
    with pytest.raises(MergeError, match=r"the message cannot be merged: \{\{v\}\}"):
        template.render({"v": "x", "w": "x"})


def test_a_missing_value_and_a_default() -> None:
    letter = b"From: a@b.example\nSubject: {{a|x}} {{ b }}\n\n{{a}} {{c|}}.\n"
    template = Template(letter)
    assert (template.fields, template.required) == (["a", "b", "c"], ["a", "b"])
    with pytest.raises(MergeError, match="there is no value for 'a'"):
        template.render({"b": "x"})
    header, body = template.render({"a": " ", "b": ""})
    assert (header, body) == (b"From: a@b.example\r\nSubject: x\r\n", b"  .\r\n")


def test_a_soft_line_break_within_a_field_and_the_edges_of_lines() -> None:
    letter = (
        b"From: a@b.example\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n"
        b"Hello {=\n{na=\nme}=7D, =20\nbye=\n"
    )
    assert text_of(read(rendered(letter, name="Zoë "))) == "Hello Zoë ,  \nbye"
    assert text_of(read(rendered(letter, name="x" * 200))) == f"Hello {'x' * 200},  \nbye"


def test_undeclared_text_is_declared_where_it_must_be() -> None:
    letter = b"From: a@b.example\n\nHello {{name}}\n"
    assert rendered(letter) == b"From: a@b.example\r\n\r\nHello Ann\r\n"
    message = read(rendered(letter, name="Zoë"))
    assert text_of(message) == "Hello Zoë\n"
    assert (message["mime-version"], message["content-transfer-encoding"]) == ("1.0", "8bit")
    assert text_of(read(rendered(letter, name="x " * 1000))) == f"Hello {'x ' * 1000}\n"
