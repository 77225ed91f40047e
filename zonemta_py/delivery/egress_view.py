"""Sending as an operator sees it: rows for commands, the API, the page and metrics. Pure."""

from functools import lru_cache

from zonemta_py.config.plain import rate_text
from zonemta_py.core.model import ALL_PROVIDERS
from zonemta_py.schedule.controller import Pace
from zonemta_py.schedule.paths import Path
from zonemta_py.schedule.rate_windows import RateWindows
from zonemta_py.schedule.warmup import DAY_MS, Warming


def path_row(path: Path, now_ms: int) -> dict[str, object]:
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
    """To how much the controller, or a rule, has lowered a way: messages a minute and sessions, and those of its limits.

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
