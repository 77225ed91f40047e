"""23. ``log.format: postfix`` writes a line for each outcome: log analysers count lines."""

import logging
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
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


PROCESSES = [{"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}]
PFLOGSUMM = shutil.which("pflogsumm")


async def relayed(
    directory: Path, caplog: pytest.LogCaptureFixture, processes: dict[str, int]
) -> list[str]:
    """The lines about mail in two zones to two receivers: deliveries, and bounces with the same reply to one domain."""
    caplog.set_level(logging.INFO)
    log: dict[str, Any] = {"format": "postfix", "outcomes": ["delivered", "bounced"]}
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no"))
        await stage.receiver("b.example", Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no"))
        await stage.receiver("sender.example")
        routing = [{"recipient_domain": "b.example", "zone": "bulk"}]
        config = stage.config(log=log, zones={"bulk": {}}, routing=routing, processes=processes)
        async with relaying(config) as relay:
            for domain in ("a.example", "b.example"):
                await send(
                    relay,
                    [f"{name}{number}@{domain}" for number in range(COUNT) for name in ("ok", "no")],
                )
            await empty(relay)
    formatter = logs._PostfixFormatter()
    return [formatter.format(each) for each in caplog.records if each.name == "zonemta_py.smtp"]


def counted(lines: Iterable[str]) -> Counter[tuple[str, str]]:
    """Outcomes by domain and status."""
    found = [SMTP_LINE.match(line) for line in lines]
    return Counter((match[1].rpartition("@")[2], match[2]) for match in found if match)


@pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
async def test_a_line_for_each_outcome(
    directory: Path, caplog: pytest.LogCaptureFixture, processes: dict[str, int]
) -> None:
    lines = await relayed(directory, caplog, processes)
    counts = counted(lines)
    reports = counts.pop(("sender.example", "sent"))
    assert counts == {
        (domain, status): COUNT
        for domain in ("a.example", "b.example")
        for status in ("sent", "bounced")
    }
    assert sum(counts.values()) + reports == len(lines)


@pytest.mark.skipif(PFLOGSUMM is None, reason="pflogsumm is not installed")
async def test_pflogsumm_counts_them(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = await relayed(directory, caplog, PROCESSES[0])
    reports = counted(lines)["sender.example", "sent"]
    (directory / "mail.log").write_text("".join(f"{line}\n" for line in lines))
    command = [str(PFLOGSUMM), "--syslog-name=zonemta", str(directory / "mail.log")]
    summary = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^ +{2 * COUNT + reports} +delivered$", summary, re.MULTILINE), summary
    assert re.search(rf"^ +{2 * COUNT} +bounced$", summary, re.MULTILINE), summary
