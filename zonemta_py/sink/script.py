"""Rules by which a sink refuses, stalls or drops, in YAML. The first matching rule applies.

- at: rcpt                      # connect, ehlo, mail, rcpt, data or dot
  recipient: "*@slow.example"   # glob; at rcpt the recipient of the command, at data and dot the first one
  sender: "*"                   # glob
  local: 127.0.0.11             # only on connections to this address
  reply: 451 4.7.1 Greylisted   # the reply; default: the usual one
  after: 10                     # only when the transaction has this many recipients
  session: 2                    # only in the n-th connection
  times: 1                      # apply at most this often to each recipient (at connect: local address)
  stall: 5s                     # delay of the reply
  drop: true                    # close the connection instead of replying

A mapping has the rules under ``rules``, and under ``providers`` what ``sink.sink_limits`` describes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from zonemta_py.config.load import parse_document, plain
from zonemta_py.config.values import duration
from zonemta_py.core.errors import ConfigError
from zonemta_py.sink.sink_limits import SinkLimits, check_limits


class Step(StrEnum):
    """The steps of a dialogue at which a rule can apply, in their order."""

    CONNECT = "connect"
    EHLO = "ehlo"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    DOT = "dot"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. A field that is None matches everything."""

    at: Step
    recipient: str | None = None
    sender: str | None = None
    local: str | None = None
    after: int = 0
    session: int | None = None
    reply: str | None = None
    times: int | None = None
    stall_s: float = 0.0
    drop: bool = False


class Script:
    """Rules, and how often each was applied to a recipient; the limits of providers."""

    def __init__(self, rules: Sequence[Rule], providers: Sequence[SinkLimits] = ()) -> None:
        self.providers = tuple(providers)
        self._rules: dict[Step, list[tuple[int, Rule]]] = {}
        for number, rule in enumerate(rules):
            self._rules.setdefault(rule.at, []).append((number, rule))
        self._applied: Counter[tuple[int, str]] = Counter()

    def match(
        self,
        step: Step,
        argument: str,
        sender: str,
        recipients: Sequence[str],
        local: str,
        session: int,
    ) -> Rule | None:
        """The rule to apply, which is counted; None for the usual reply."""
        rules = self._rules.get(step)
        if not rules:
            return None
        recipient = argument if step is Step.RCPT else (recipients[0] if recipients else "")
        for number, rule in rules:
            if rule.local not in (None, local) or rule.session not in (None, session):
                continue
            if len(recipients) < rule.after:
                continue
            if rule.recipient is not None and not fnmatchcase(recipient, rule.recipient):
                continue
            if rule.sender is not None and not fnmatchcase(sender, rule.sender):
                continue
            if rule.times is not None:
                subject = (number, recipient or local)
                if self._applied[subject] >= rule.times:
                    continue
                self._applied[subject] += 1
            return rule
        return None


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A script with providers. ``rules`` is a list of what ``_rule`` reads."""

    rules: object = ()
    providers: tuple[SinkLimits, ...] = ()


def load_script(path: Path) -> Script:
    """Read rules and providers from a YAML file. Raises ConfigError, which names file and rule or key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    rules = plain(text, str(path))
    providers: Sequence[SinkLimits] = ()
    if isinstance(rules, dict):
        found, reader = parse_document(text, path, ScriptFile)
        providers = check_limits(reader, found.providers)
        rules = list(found.rules) if isinstance(found.rules, (list, tuple)) else None
    if not isinstance(rules, list):
        raise ConfigError(f"{path}: expected a list of rules, or a mapping with rules and providers")
    return Script([_rule(item, f"{path}: rule {n}") for n, item in enumerate(rules, 1)], providers)


def _rule(item: Any, where: str) -> Rule:
    if not isinstance(item, dict):
        raise ConfigError(f"{where}: expected a mapping")
    known = {"at", "recipient", "sender", "local", "after", "session", "reply", "times", "stall", "drop"}
    unknown = set(item) - known
    if unknown:
        raise ConfigError(f"{where}: unknown key '{min(unknown)}', allowed: {', '.join(sorted(known))}")
    try:
        step = Step(item.get("at", ""))
        stall_s = duration(item["stall"]) if "stall" in item else 0.0
    except ValueError as exc:
        raise ConfigError(f"{where}: {exc}; 'at' is one of {', '.join(Step)}") from None
    reply = item.get("reply")
    if reply is not None and (not isinstance(reply, str) or not reply[:1].isdigit()):
        raise ConfigError(f"{where}: reply is a line such as '451 4.7.1 Greylisted'")
    return Rule(
        at=step,
        recipient=item.get("recipient"),
        sender=item.get("sender"),
        local=item.get("local"),
        after=int(item.get("after", 0)),
        session=item.get("session"),
        reply=reply,
        times=item.get("times"),
        stall_s=stall_s,
        drop=bool(item.get("drop")),
    )
