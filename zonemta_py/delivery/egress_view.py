"""Sending as an operator sees it: rows for commands, the API, the page and metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import nlargest

from zonemta_py.config.plain import rate_text
from zonemta_py.core.model import ALL_PROVIDERS, PathKey
from zonemta_py.delivery.egress import Egress
from zonemta_py.schedule.controller import Pace
from zonemta_py.schedule.paths import EgressPath
from zonemta_py.schedule.permits import ANY
from zonemta_py.schedule.rate_windows import RateWindows
from zonemta_py.schedule.sources import source_name
from zonemta_py.schedule.warmup import DAY_MS, Warming

ROWS_MAX = 300  # in metrics: a row costs 15 to 50 µs, and is some ten series


def path_rows(
    egress: Egress, provider: str = "", address: str = "", most: int = ROWS_MAX
) -> list[dict[str, object]]:
    """Each path from an address to a provider on which something is limited, under way, or was refused lately.

    An address with limits of its own has a row with the provider ALL_PROVIDERS as well. ``provider``, ``address``: only those of it.
    Of more than ``most`` paths those with the least mail are left out, and none that is lowered, paused or suspended before them.
    """
    _make_suspended(egress)
    now_ms, paces = egress.now_ms(), egress.shaper.controller.paces
    counts = {key: found for key, *found in egress.shaper.controller.counts(now_ms)}
    found = [
        path
        for path in egress.permits.paths()
        if path.address
        and provider in ("", path.provider or ALL_PROVIDERS)
        and address in ("", path.address)
    ]
    found = [path for path in found if _is_shown(egress, path, counts)]
    if len(found) > most:
        found = nlargest(most, found, lambda path: _weight(egress, path, counts, now_ms))
    waiting: Counter[str] = Counter()
    for gate in egress.gates.all():
        waiting[gate.provider or gate.key.cause.removeprefix("provider:")] += len(gate.waiting)
    rows = []
    for path in found:
        key = path.provider, path.address
        attempts, refused = counts.get(key, (0, 0))
        stopped = egress.stopped(("provider", path.provider), ("address", path.address))
        warming = egress.warmup.of(path.address, path.provider) if egress.warmup else []
        total = egress.permits.path(path.provider, ANY) if path.provider else None
        rows.append(path_row(path, now_ms) | pace_row(paces.get(key)) | {
            "provider_sessions": total.sessions if total is not None else 0,
            "provider_sessions_max": total.most() if total is not None else None,
            "attempts": attempts, "refused": refused,
            "last_classes": list(egress.shaper.last_classes.get(key, ())),
            "suspended": stopped[1].reason if stopped else "",
            "waiting": waiting[path.provider] if path.provider else egress.gates.waiting_for(path.address),
            "warmup": [warmup_row(each, egress.calendar_ms(now_ms)) for each in warming],
        })  # fmt: skip
    return rows


def _make_suspended(egress: Egress) -> None:
    """What an operator has suspended has paths, also before any mail uses them."""
    for name in egress.queue.suspended.sending():
        kind, _, value = name.partition(":")
        if kind == "address":
            egress.permits.path("", value)
        elif kind == "provider":
            for each in {source_name(entry) for pool in egress.pools.values() for entry in pool}:
                egress.permits.path(value, each)


def _is_shown(egress: Egress, path: EgressPath, counts: Mapping[PathKey, Sequence[int]]) -> bool:
    if path.is_limited or egress.stopped(("provider", path.provider), ("address", path.address)):
        return True
    key = path.provider, path.address
    return bool(path.provider) and bool(
        path.sessions
        or any(counts.get(key, ()))
        or egress.shaper.last_classes.get(key)
        or (egress.warmup and any(each.schedule.provider for each in egress.warmup.of(*key[::-1])))
    )


def _weight(
    egress: Egress, path: EgressPath, counts: Mapping[PathKey, Sequence[int]], now_ms: int
) -> tuple[bool, int, int]:
    key, ceiling = (path.provider, path.address), path.ceiling
    stopped = egress.stopped(("provider", path.provider), ("address", path.address))
    needs_attention = (
        stopped is not None or ceiling.paused_ms > now_ms or key in egress.shaper.controller.paces
    )
    return needs_attention, sum(counts.get(key, ())), path.sessions


def warmup_rows(egress: Egress) -> list[dict[str, object]]:
    """Each schedule of an address that is new."""
    today_ms = egress.calendar_ms(egress.now_ms())
    return [warmup_row(each, today_ms) for each in egress.warmup.all()]


def path_row(path: EgressPath, now_ms: int) -> dict[str, object]:
    """What is under way between an address and a provider, and what is allowed there. Times are unix ms, 0 for none."""
    ceiling = path.ceiling
    return {
        "provider": path.provider or ALL_PROVIDERS,
        "address": path.address,
        "sessions": path.sessions,
        "idle": path.idle,
        "sessions_max": path.most(),
        "rates": _rates(path.messages, now_ms),
        "connect_rates": _rates(path.connects, now_ms),
        "pace_sessions": ceiling.sessions,
        "pace_rates": _rates(ceiling.messages, now_ms),
        "paused_until_ms": ceiling.paused_ms if ceiling.paused_ms > now_ms else 0,
        "cause": ceiling.reason,
    }


def pace_row(pace: Pace | None) -> dict[str, object]:
    """To how much the controller, or a rule, has lowered a path: messages a minute and sessions, and those of its limits.

    None: nothing is lowered.
    """
    return {
        "pace_per_min": None if pace is None else pace.rate,
        "full_per_min": None if pace is None else pace.top_rate,
        "full_sessions": None if pace is None else pace.top_sessions,
    }


_rate_text = lru_cache(1000)(rate_text)


def _rates(windows: RateWindows | None, now_ms: int) -> list[dict[str, object]]:
    if windows is None:
        return []
    return [
        {"rate": _rate_text(rate), "used": used, "of": rate.events}
        for rate, used in windows.used(now_ms)
    ]


def warmup_row(warming: Warming, now_ms: int) -> dict[str, object]:
    """How far the warm-up of an address is. ``allowed`` and ``left`` None: no limit any more.

    ``late_days``: with those of a pause.
    """
    day, state, schedule = now_ms // DAY_MS, warming.state, warming.schedule
    return {
        "address": schedule.address,
        "provider": schedule.provider,
        "begins": schedule.begins.isoformat(),
        "step": warming.step(day) + 1,
        "steps": len(schedule.daily),
        "allowed": warming.allowed(day),
        "sent": state.sent if state.day == day else 0,
        "left": warming.room(now_ms),
        "late_days": warming.late_days(day),
        "paused": bool(state.paused_day),
    }
