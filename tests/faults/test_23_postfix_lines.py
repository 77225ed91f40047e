"""23. ``log.format: postfix`` writes a line for each outcome: log analysers count lines."""

import logging
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.relay import empty, relaying, send, staged
from zonemta_py.core import logs
from zonemta_py.sink.script import Rule, Step

COUNT = 40
SMTP_LINE = re.compile(  # what pflogsumm looks for in a line of smtp
    r"^\w{3} [ \d]\d \d\d:\d\d:\d\d \S+ zonemta/smtp\[\d+\]: [0-9a-f]{24}: to=<([^>]*)>, relay=[^,]+, delay=[\d.]+, "
    r"delays=[\d./]+, dsn=\d\.\d+\.\d+, status=(\w+) \(.*\)$"
)


async def test_a_line_for_each_outcome(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two zones and two receivers: deliveries, and bounces with the same reply to one domain."""
    caplog.set_level(logging.INFO)
    log: dict[str, Any] = {"format": "postfix", "outcomes": ["delivered", "bounced"]}
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no"))
        await stage.receiver("b.example", Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no"))
        await stage.receiver("sender.example")
        routing = [{"recipient_domain": "b.example", "zone": "bulk"}]
        async with relaying(stage.config(log=log, zones={"bulk": {}}, routing=routing)) as relay:
            for domain in ("a.example", "b.example"):
                await send(
                    relay,
                    [f"{name}{number}@{domain}" for number in range(COUNT) for name in ("ok", "no")],
                )
            await empty(relay)
    records = [record for record in caplog.records if record.name == "zonemta_py.smtp"]
    text = "".join(f"{logs._PostfixFormatter().format(record)}\n" for record in records)
    found = [SMTP_LINE.match(line) for line in text.splitlines()]
    counts = Counter((match[1].rpartition("@")[2], match[2]) for match in found if match)
    reports = counts.pop(("sender.example", "sent"))
    assert counts == {
        (domain, status): COUNT
        for domain in ("a.example", "b.example")
        for status in ("sent", "bounced")
    }
    assert sum(counts.values()) + reports == len(records)
    analyser = shutil.which("pflogsumm")
    if analyser is not None:
        (directory / "mail.log").write_text(text)
        command = [analyser, "--syslog-name=zonemta", str(directory / "mail.log")]
        summary = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert re.search(rf"^ +{2 * COUNT + reports} +delivered$", summary, re.MULTILINE), summary
        assert re.search(rf"^ +{2 * COUNT} +bounced$", summary, re.MULTILINE), summary
