"""A report as one HTML file with tables and charts; it loads nothing and runs no script. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --bar: #2f6feb; --bad: #cf222e; --mid: #bf8700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --bar: #58a6ff; --bad: #ff7b72; --mid: #d29922; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } p.note { opacity: .75; margin-top: .2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; vertical-align: top; }
th.text, td.text { text-align: left; overflow-wrap: anywhere; } thead th { position: sticky; top: 0; background: var(--paper); }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0; } .card { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem; min-width: 9rem; }
.card b { display: block; font-size: 1.5rem; } svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 11px; }
"""

BAR_MAX = 80  # width of a bar, for charts with few bars


@dataclass(frozen=True, slots=True)
class Figure:
    """A number at the top of the page."""

    title: str
    value: str


@dataclass(frozen=True, slots=True)
class StackedBar:
    """A bar of a chart: its label, and the values of its good, middling and bad parts."""

    label: str
    good: float
    middling: float
    bad: float


def page(title: str, note: str, sections: Sequence[str]) -> str:
    """The complete file; ``sections`` are HTML, the other texts are escaped."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f'<body><h1>{escape(title)}</h1><p class="note">{escape(note)}</p>{"".join(sections)}</body></html>\n'
    )


def cards(figures: Sequence[Figure]) -> str:
    """The figures in a row."""
    inside = "".join(
        f'<div class="card"><b>{escape(each.value)}</b>{escape(each.title)}</div>' for each in figures
    )
    return f'<div class="cards">{inside}</div>'


def table(
    title: str, note: str, head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1
) -> str:
    """A table; the first ``texts`` columns are text, the others are numbers."""
    if not rows:
        return f"<h2>{escape(title)}</h2><p>Nothing to show.</p>"

    def line(tag: str, cells: Sequence[str]) -> str:
        left = f'<{tag} class="text">'
        marked = (
            f"{left if i < texts else f'<{tag}>'}{escape(cell)}</{tag}>" for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
        f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
    )


def bar_chart(title: str, note: str, bars: Sequence[StackedBar]) -> str:
    """A chart of vertical bars on one scale from zero; empty when all values are zero."""
    most = max((bar.good + bar.middling + bar.bad for bar in bars), default=0)
    if not most:
        return ""
    width, height, base = 960, 220, 190
    step = min(width / len(bars), BAR_MAX)
    parts = [f'<text x="0" y="12">{most:,.0f}</text>']
    for i, bar in enumerate(bars):
        y = float(base)
        for value, colour in ((bar.good, "--bar"), (bar.middling, "--mid"), (bar.bad, "--bad")):
            tall = value / most * (base - 20)
            y -= tall
            if tall:
                parts.append(
                    f'<rect x="{i * step:.1f}" y="{y:.1f}" width="{max(1.0, step - 2):.1f}" height="{tall:.1f}"'
                    f' style="fill: var({colour})"><title>{escape(bar.label)}: {value:,.0f}</title></rect>'
                )
        if i % max(1, len(bars) // 12) == 0:
            parts.append(f'<text x="{i * step:.1f}" y="{height - 12}">{escape(bar.label)}</text>')
    return (
        f'<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
