"""``zonemta top``: what the running relay attempts and what waits, each second, or once for a pipe or a program.

States of ``Screen``::

    rows ─ enter ─▶ one row (``opened``) ─ enter, escape, / or a view ─▶ rows
    rows or one row ─ / ─▶ a filter is typed (``is_typing``) ─ enter, or escape, which drops it ─▶ rows
    rows or one row ─ q ─▶ ``done``

Invariants:

- ``Screen``, ``merged``, ``render`` and ``keys_in`` get rows and keys, and ask neither relay nor terminal.
- While a filter is typed every character belongs to it; q does not end the command.
- The terminal has its settings again when the command ends, also by an error (``_keys``).
- Rows are those that were attempted in the window, and those that only wait; names are drawn as one line (``one_line``).
- With ``--once`` or ``--json``, and where there is no terminal, the rates are printed once as a table or as rows.

Callers: ``zonemta top``; ``_watch`` asks the relay, draws, and gives the keys to the screen, after each key and each interval.

Example: ``screen.press("t", names)`` shows tenants, ``screen.press("6", names)`` the last 60 minutes.
"""

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zonemta_py.admin.requests import (
    DestinationsRequest,
    RatesRequest,
    Request,
    StatusRequest,
    SummaryRequest,
    TenantsRequest,
)
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    config_option,
    echo,
    json_option,
    print_json,
    print_table,
    reason_text,
    reports_errors,
)
from zonemta_py.cli.status import by_operator
from zonemta_py.core import clock
from zonemta_py.core.model import STATES
from zonemta_py.core.text import ago, one_line

VIEWS = {"z": "zone", "d": "destination", "t": "tenant", "a": "source"}
WINDOWS = {"1": 1, "5": 5, "6": 60}
COLUMNS = {  # and their headings, short enough for a terminal of 80 columns
    "attempts": "tried", "delivered": "deliv", "deferred": "defer", "bounced": "bounc", "sessions": "sess",
    "p50_ms": "p50ms", "p95_ms": "p95ms", "queued": "queued", "suspended": "susp",
}  # fmt: skip
ORDERS = tuple(COLUMNS)
HELP = "z zones  d destinations  t tenants  a addresses  1 5 6: minutes (1, 5, 60)  o order  / filter  enter open  q quit"
ROWS_MAX = 200

Row = dict[str, Any]


@dataclass
class Screen:
    """The choices of the user, and how keys change them."""

    view: str = "zone"
    minutes: int = 1
    order: int = 0  # an index of ORDERS
    selected: int = 0
    filter: str = ""
    is_typing: bool = False
    opened: str = ""  # the name of the row that is shown alone
    done: bool = False

    def press(self, key: str, names: list[str]) -> None:
        """Handle ``key``; ``names`` are those of the visible rows."""
        if self.is_typing:
            self._type(key)
        elif key in VIEWS:
            self.view, self.selected, self.opened = VIEWS[key], 0, ""
        elif key in WINDOWS:
            self.minutes = WINDOWS[key]
        elif key == "o":
            self.order = (self.order + 1) % len(ORDERS)
        elif key == "/":
            self.is_typing, self.filter, self.opened = True, "", ""
        elif key in ("up", "k"):
            self.selected = max(0, self.selected - 1)
        elif key in ("down", "j"):
            self.selected = max(0, min(self.selected + 1, len(names) - 1))
        elif key == "enter":
            self.opened = "" if self.opened or not names else names[min(self.selected, len(names) - 1)]
        elif key == "escape":
            self.opened, self.filter = "", ""
        elif key == "q":
            self.done = True

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.is_typing = False
            if key == "escape":
                self.filter = ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1:
            self.filter += key

    def visible(self, rows: list[Row]) -> list[Row]:
        """The rows that match the filter, in order."""
        found = [row for row in rows if self.filter.lower() in row["name"].lower()]
        if self.opened:
            found = [row for row in found if row["name"] == self.opened]
        return sorted(found, key=lambda row: (-row[ORDERS[self.order]], -row["queued"]))


def merged(rows: list[Row], queued: dict[str, tuple[int, int]]) -> list[Row]:
    """``rows`` of what was attempted, and rows of what is only ``queued``: by name how much, and how much is suspended."""
    found = {name: {"name": name, **dict.fromkeys(COLUMNS, 0)} for name in queued}
    found |= {row["name"]: {"queued": 0, "suspended": 0, **row} for row in rows}
    for name, (total, suspended) in queued.items():
        found[name] |= {"queued": total, "suspended": suspended}
    return list(found.values())


def render(screen: Screen, status: Row, rows: list[Row], height: int) -> Group:
    """The screen as rich draws it. ``rows`` are the visible ones."""
    counts = "  ".join(f"{name.replace('_', ' ')} {status['queue'][name]:,}" for name in STATES)
    ready = "; ".join(status["not_ready"]) or "ready"
    head = Text(
        f"zonemta {status['version']} {status['hostname']}  for {ago(status['since_ms'])}  {ready}\n"
        f"{counts}\nsessions {status['sessions_in']} in, {status['sessions_out']} out  "
        f"{status['unreachable']} destinations unreachable\n"
    )
    if names := by_operator(status):
        head.append(f"suspended by an operator: {one_line(names)}\n", style="yellow")
    table = Table(box=None, pad_edge=False, header_style="reverse")
    table.add_column(f"{screen.view} ({screen.minutes} min)", overflow="ellipsis", min_width=12)
    for number, title in enumerate(COLUMNS.values()):
        mark = "▼" if number == screen.order else ""
        table.add_column(title + mark, justify="right", no_wrap=True)
    shown = max(1, height - 9 - bool(names))
    first = max(0, screen.selected - shown + 1)
    for number, row in enumerate(rows[first : first + shown], first):
        style = "bold" if number == screen.selected else ""
        table.add_row(one_line(row["name"]), *(f"{row[name]:,}" for name in COLUMNS), style=style)
    below = [Text(line) for line in _reasons(screen, status)]
    foot = f"filter: {screen.filter}_" if screen.is_typing else HELP
    return Group(head, table, *below, Text("\n" + foot, style="dim"))


def _reasons(screen: Screen, status: Row) -> Iterator[str]:
    """The reasons for which destinations are unreachable: those of the opened row, or the first ones."""
    for each in status["unreachable_destinations"]:
        name = f"{each['zone']}/{each['destination']}"
        if each["why"] and screen.opened in ("", each["destination"], each["zone"]):
            yield f"{name}: {one_line(reason_text(each['why']))}"


_NAMES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b": "escape", "\n": "enter", "\r": "enter", "\x7f": "backspace",
    "\x08": "backspace",
}  # fmt: skip


def keys_in(text: str) -> list[str]:
    """The keys that a terminal has sent as ``text``; those without a name are their character."""
    return [_NAMES.get(key, key) for key in re.findall(r"\x1b\[[0-9;]*[A-Za-z~]|.|\n", text)]


@contextmanager
def _keys() -> Iterator[Callable[[float], list[str]]]:
    """A function that waits for keys, for a number of seconds at most."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def read(at_most_s: float) -> list[str]:
        if not select.select([descriptor], [], [], at_most_s)[0]:
            return []
        return keys_in(os.read(descriptor, 1024).decode("utf-8", "replace"))

    try:
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@click.command()
@config_option
@click.option(
    "--by",
    "view",
    type=click.Choice(list(VIEWS.values())),
    help="Zones, destinations, tenants or source addresses.  [default: zone; with --once all of them]",
)
@click.option(
    "--minutes",
    type=click.Choice([str(each) for each in WINDOWS.values()]),
    help="The window.  [default: 1; with --once 5]",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Print the rates once, as without a terminal.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The most rows of a kind with --once, the busiest first.",
)
@json_option
@reports_errors
def top(
    config_path: Path, view: str | None, minutes: str | None, interval_s: float, once: bool, limit: int, as_json: bool
) -> None:  # fmt: skip
    """Watch the running relay: what waits, what is sent, which destinations do not answer.

    z, d, t and a show zones, destinations, tenants and source addresses; 1, 5 and 6 the last 1, 5 or 60 minutes; o changes
    the order, / filters, the arrows and enter open a row, q ends. sess: sessions that were opened; p50 and p95: the time of an
    attempt, up to which half and 95 % of them took, as the next of 5, 10, 20, 50, 100, 200, 500 ms, 1, 2, 5, 10, 30 s, 1 and
    5 min; queued: recipients in the queue; susp: those that wait for the end of what an operator has suspended.

    \b
    Examples:
      zonemta top -c config/zonemta.yaml
      zonemta top -c config/zonemta.yaml --once --by destination --minutes 60
      zonemta top -c config/zonemta.yaml --json
    """
    if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        request = RatesRequest(int(minutes or 5), view, limit)
        _print_once(list(rows_of(config_path, request, relay_only=True)), request, as_json=as_json)
        return
    try:
        _watch(config_path, Screen(view or "zone", int(minutes or 1)), interval_s)
    except KeyboardInterrupt:
        pass  # the usual way to leave


def _print_once(rows: list[Row], request: RatesRequest, *, as_json: bool) -> None:
    """Print the attempts by zone, destination, source address and tenant, or by one of them."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        now = f"{clock.utc(clock.now_ms()):%H:%M} UTC"
        echo(f"nothing was attempted in the last {request.minutes} min ({now})")
        return
    counts = ("attempts", "delivered", "deferred", "bounced", "expired", "sessions")
    table = Table(box=None, pad_edge=False)
    for title in ("kind", "name", *counts, "delivered/s", "p50 ms", "p95 ms"):
        table.add_column(title, justify="left" if title in ("kind", "name") else "right")
    for row in rows:
        numbers = (str(row[name]) for name in counts)
        rate = f"{row['delivered_per_s']:.1f}"
        table.add_row(row["kind"], row["name"], *numbers, rate, str(row["p50_ms"]), str(row["p95_ms"]))
    print_table(table)


def _queued(config_path: Path, view: str) -> dict[str, tuple[int, int]]:
    """The numbers of queued recipients, and of suspended ones among them, by the names that ``view`` shows. None of source addresses."""
    if view == "source":
        return {}
    asked: Request = SummaryRequest()
    if view != "zone":
        asked = TenantsRequest(ROWS_MAX) if view == "tenant" else DestinationsRequest(limit=ROWS_MAX)
    found: dict[str, tuple[int, int]] = {}
    for row in rows_of(config_path, asked, relay_only=True):
        total = row["queued"] if view == "tenant" else sum(row[state] for state in STATES)
        before = found.get(row[view], (0, 0))
        found[row[view]] = before[0] + total, before[1] + row.get("suspended", 0)
    return found


def _watch(config_path: Path, screen: Screen, interval_s: float) -> None:
    console = Console(markup=False)
    with _keys() as read_keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while not screen.done:
            (status,) = rows_of(config_path, StatusRequest(), relay_only=True)
            request = RatesRequest(screen.minutes, screen.view, ROWS_MAX)
            attempted = list(rows_of(config_path, request, relay_only=True))
            rows = screen.visible(merged(attempted, _queued(config_path, screen.view)))
            live.update(render(screen, status, rows, console.height), refresh=True)
            for key in read_keys(interval_s):
                screen.press(key, [row["name"] for row in rows])
