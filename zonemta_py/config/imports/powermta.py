"""PowerMTA's ``<domain>``, ``<mx-rollup-list>`` and ``<smtp-pattern-list>`` as providers and rules.

Source: the PowerMTA user's guide, "Configuration directives" and "Backoff mode".
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from zonemta_py.config.imports.model import (
    MESSAGES_MAX,
    Imported,
    count_of,
    duration_of,
    rate_of,
)
from zonemta_py.config.imports.powermta_file import Domain, PowermtaFile
from zonemta_py.config.providers import ProviderTable, is_domain
from zonemta_py.config.shaping import SESSIONS_MAX
from zonemta_py.core.errors import ConfigError

_LIMITS = {
    "max-smtp-out": "sessions_per_address",
    "max-msg-per-connection": "messages_per_session",
    "max-msg-rate": "rate",
    "max-connect-rate": "connect_rate",
}
_OF_BACKOFF = {
    "smtp-pattern-list", "backoff-max-msg-rate", "backoff-max-smtp-out", "backoff-to-normal-after",
}  # fmt: skip
_INSTEAD = {
    "retry-after": "zones.retry.delays is for all providers",
    "backoff-retry-after": "zones.retry.delays is for all providers",
    "bounce-after": "zones.retry.give_up_after is for all providers",
    "backoff-to-normal-after-delivery": "a rule ends after its time, and not by a delivery",
    "use-starttls": "zones.tls says it",
    "require-starttls": "zones.tls says it",
    "smtp-hosts": "zones.destinations has smarthosts for a domain",
    "dkim-sign": "dkim.keys says it",
}
UNLIMITED = "unlimited"
DEFAULT_FOR = "1h"
DEFAULT_TO = "25%"

_T = TypeVar("_T")


def import_powermta(path: Path, known: ProviderTable) -> Imported:
    """What the file says; files that it includes are imported on their own. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    found = Imported(known)
    file = PowermtaFile(found.leave)
    try:
        file.read(text, str(path))
    except ConfigError:
        if file.is_powermta:
            raise
    if not file.is_powermta:
        raise ConfigError(
            f"{path}: nothing of PowerMTA's configuration is in it: expected blocks such as <domain example.com> or "
            "<smtp-pattern-list x>, or domain-macro. --format kumomta reads TOML"
        )
    return _Import(found, file).finish()


class _Import:
    """Puts domains, lists and macros of a file together."""

    def __init__(self, found: Imported, file: PowermtaFile) -> None:
        self._found = found
        self._file = file

    def finish(self) -> Imported:
        """Providers and rules."""
        used = {name for name, _ in self._file.nested_lists}
        for name, number in self._file.nested_lists:
            self._found.leave(number, f"smtp-pattern-list {name}: the rules of this block are left out")
        for domain in self._file.domains:
            providers = self._provider(domain)
            for name, number in domain.lists:
                used.add(name)
                if name not in self._file.lists:
                    self._found.leave(number, f"smtp-pattern-list {name} is not in this file")
                elif providers is None:  # without a provider its rules would be those of all
                    self._found.leave(
                        number,
                        f"smtp-pattern-list {name}: the rules of <domain {domain.name}> are left out",
                    )
                else:
                    self._rules(name, domain, providers)
        for name, patterns in self._file.lists.items():
            if patterns and name not in used:
                self._rules(name, Domain("*", patterns[0][0]), [])
        self._found.fill_from_default()
        return self._found

    def _provider(self, domain: Domain) -> list[str] | None:
        """Add the limits of a domain; returns what its rules have as ``provider``: none for all, None if it is not known whose they are."""
        limits = self._limits(domain)
        if domain.name == "*":
            if limits:
                self._found.add_provider("default", [], [], limits, domain.line)
            return []
        mx = self._file.rollups.get(domain.name, [])
        is_macro = domain.name.startswith("$")
        domains = self._file.macros.get(domain.name.removeprefix("$"), []) if is_macro else []
        if not mx and not domains:
            if not is_domain(domain.name) or domain.name.endswith((".rollup", ".queue")):
                self._found.leave(
                    domain.line, f"<domain {domain.name}>: nothing in this file says whose it is"
                )
                return None
            domains = [domain.name]
        short = domain.name.removeprefix("$").removesuffix(".rollup")
        name = self._found.name_of(short, mx, domains)
        if limits or domain.lists:
            return self._found.add_parts(name, mx, domains, limits, domain.line)
        return [name]

    def _limits(self, domain: Domain) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, (value, number) in domain.values.items():
            counterpart = _LIMITS.get(key)
            if counterpart is None:
                if key not in _OF_BACKOFF:
                    self._found.leave(number, f"{key} {value}: {_INSTEAD.get(key, 'no counterpart')}")
            elif counterpart in ("rate", "connect_rate"):
                rate = rate_of(value)
                if rate is not None:
                    found[counterpart] = [rate]
                elif value.lower() != UNLIMITED:
                    self._found.leave(number, f"{key} {value}: not a rate")
            else:
                most = MESSAGES_MAX if counterpart == "messages_per_session" else SESSIONS_MAX
                count = count_of(value, most)
                if count is not None:
                    found[counterpart] = count
                elif value.lower() != UNLIMITED:
                    self._found.leave(number, f"{key} {value}: not a number from 1 to {most}")
        return found

    def _rules(self, name: str, domain: Domain, providers: list[str]) -> None:
        """A rule for each action of the list ``name``, as ``domain`` uses it."""
        by_action: dict[str, list[str]] = {}
        for number, pattern, action in self._file.lists[name]:
            kind = "backoff" if "mode=backoff" in action.split(",") else action
            if kind not in ("backoff", "bounce-rcpt"):
                self._found.leave(number, f"'{action}': no counterpart")
                continue
            usable = self._found.usable([pattern], number)
            by_action.setdefault(kind, []).extend(usable)
        for kind, patterns in by_action.items():
            common = {"provider": providers} if providers else {}
            common["pattern"] = list(dict.fromkeys(patterns))
            if patterns and kind == "bounce-rcpt":
                self._found.add_rule(f"{name}-bounce", {**common, "action": "bounce"})
            elif patterns:
                for rule in self._backoff(domain):
                    self._found.add_rule(
                        f"{'-'.join([*providers, name])}-{rule['action']}", {**common, **rule}
                    )

    def _backoff(self, domain: Domain) -> Iterator[dict[str, Any]]:
        """What backoff mode means for a domain."""
        for_ = self._read(
            domain, "backoff-to-normal-after", duration_of, f"the rule is for {DEFAULT_FOR}"
        )
        sessions = self._read(domain, "backoff-max-smtp-out", count_of, "sessions are not lowered")
        rate = self._read(
            domain, "backoff-max-msg-rate", rate_of, f"the rate is lowered to {DEFAULT_TO}"
        )
        given, number = domain.values.get("backoff-max-msg-rate", ("", domain.line))
        if "backoff-to-normal-after" not in domain.values:
            self._found.leave(domain.line, f"no backoff-to-normal-after: the rule is for {DEFAULT_FOR}")
        if not given and sessions is None:
            self._found.leave(
                domain.line, f"no backoff-max-msg-rate: the rate is lowered to {DEFAULT_TO}"
            )
        if given.lower() == UNLIMITED:
            if sessions is None:
                self._found.leave(number, f"backoff-max-msg-rate {given}: there is nothing to lower")
        elif rate is None and (given or sessions is None):
            rate = DEFAULT_TO
        if rate is not None:
            yield {"action": "lower_rate", "to": rate, "for": for_ or DEFAULT_FOR}
        if sessions is not None:
            yield {"action": "lower_sessions", "to": sessions, "for": for_ or DEFAULT_FOR}

    def _read(
        self, domain: Domain, key: str, read: Callable[[str], _T | None], instead: str
    ) -> _T | None:
        """The value of a directive; None without one. One that cannot be read is left out, with what is done ``instead``."""
        value, number = domain.values.get(key, ("", 0))
        found = read(value)
        if found is None and value.lower() not in ("", UNLIMITED):
            self._found.leave(number, f"{key} {value}: cannot be read; {instead}")
        return found
