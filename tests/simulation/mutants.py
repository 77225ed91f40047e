"""Defects that a run of seeds must find: each is one change of the product's source, made while its module is imported.

``python -m tests.simulation --mutant NAME`` plays seeds with one of them until a seed fails; ``--mutants`` does so with each, in a
process of its own, and prints how many seeds it took.
"""

import importlib.machinery
import sys
from types import CodeType
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """``old`` occurs once in ``file``. ``what``: the defect."""

    name: str
    what: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "dot-lost", "no reply to the final dot counts as delivery", "transports/session.py",
        'final = Reply(0, "4.4.2", f"no answer to the final dot: {exc}")', 'final = Reply(250, "2.0.0", str(exc))',
    ),
    Mutant(
        "uncertain-unnamed", "mail that is sent again after a lost reply is not named", "transports/session.py",
        "                result.uncertain = True\n", "                result.uncertain = False\n",
    ),
    Mutant(
        "wrong-recipient", "the reply to the final dot is for the first recipients, not for those accepted",
        "transports/session.py", "self._answer(answers, together, Phase.DOT, final)",
        "self._answer(answers, range(len(together)), Phase.DOT, final)",
    ),
    Mutant(
        "dots", "a leading dot is not doubled", "smtp/transparency.py",
        'out = data.replace(b"\\r\\n.", b"\\r\\n..")', "out = data",
    ),
    Mutant(
        "key-of-others", "a submission key without its owner", "queue/submitters/keys.py",
        'blake2b(f"{owner}\\0{key}".encode()', 'blake2b(f"{key}".encode()',
    ),
    Mutant(
        "key-twice-at-once", "two sessions with one submission key at the same time", "queue/submitters/keys.py",
        "busy = question.digest in self._under_way", "busy = False",
    ),
    Mutant(
        "key-without-recipients", "the recipients of a message are not under its key", "queue/submitters/keys.py",
        "        for address in self.addresses:\n", "        for address in ():\n",
    ),
    Mutant(
        "last-two", "two transactions that end together both leave the end of the message to the other",
        "queue/queue.py", "            active.remaining -= removed_count(outcomes)\n",
        "            left = removed_count(outcomes)\n"
        "            batch.future.add_done_callback(\n"
        "                lambda _: setattr(active, 'remaining', active.remaining - left)\n"
        "            )\n",
    ),
    Mutant(
        "interrupted-unnamed", "a delivery that a kill interrupted is not named", "queue/upkeep/startup.py",
        '        batch.record(Uncertain(**{**fields, "attempt": inflight.attempt}))\n', "",
    ),
    Mutant(
        "sessions", "one session too many with a provider", "egress/paths.py",
        "self.sessions >= most + (not session)", "self.sessions > most + (not session)",
    ),
    Mutant(
        "rate-at-reload", "a reload forgets what was used of a rate", "egress/paths.py",
        "                window.copy_uses(before[rate.per_s])\n", "                pass\n",
    ),
    Mutant(
        "rate-at-restart", "a restart forgets what was used of a rate", "egress/paths.py",
        "                window.restore(slot, used)\n", "                pass\n",
    ),
    Mutant(
        "rate-from-grant", "a message counts from its grant, not from its answer", "egress/paths.py",
        "wanted = self._granted + self._underway + 1", "wanted = 1",
    ),
    Mutant(
        "messages-of-a-session", "the limit of messages of a session is not asked", "delivery/smtp_agent.py",
        "            most = min(most, order.messages_max)\n", "            pass\n",
    ),
    Mutant(
        "hosts-found-later", "hosts that were found after the limits were asked are used without them", "delivery/smtp_agent.py",
        "        if request.lacks_hosts:\n", "        if False:\n",
    ),
    Mutant(
        "never-given-up", "mail is not given up in time", "delivery/outcome.py",
        "end_ms=born_ms + int(rules.settings.give_up_after * 1000)", "end_ms=born_ms + int(rules.settings.give_up_after * 100000)",
    ),
    Mutant(
        "due-key", "a deferred recipient has no due key", "queue/transitions.py",
        '    batch.put(keys.due_key(outcome.due_ms, zone, message), b"")\n', "",
    ),
    Mutant(
        "report-note", "a failure is left out of the report at the end of its message", "queue/queue.py",
        "            active.notes += effects.notes\n", "            pass\n",
    ),
    Mutant(
        "cleanup", "the chunks of a message stay when it has ended", "queue/queue.py",
        "                cleanup.add(active.id)  # the store counts the chunks\n", "                pass\n",
    ),
    Mutant(
        "endpoints-of-a-zone", "hosts of a domain are known without the TLS policy of the zone", "delivery/endpoints.py",
        'key = (id(zone), "" if zone.smarthost else domain, via)', 'key = (0, "" if zone.smarthost else domain, via)',
    ),
    Mutant(
        "sessions-of-a-zone", "sessions serve mail of any TLS policy and password", "delivery/endpoints.py",
        'security=f"{known[1]} {verified}{name}"', 'security=f"{name}"',
    ),
    Mutant(
        "signed-for-others", "mail of no tenant is signed with a tenant's key", "delivery/dkim.py",
        "if not keys or (self._tenants and not self._tenants.signs_for(tenant, keys[0].domain)):", "if not keys:",
    ),
    Mutant(
        "warmup-at-restart", "a restart forgets what a new address has sent on its day", "egress/warmup.py",
        "known or Warming(schedule, self._stored.pop(key, WarmupState()))", "known or Warming(schedule, WarmupState())",
    ),
    Mutant(
        "batch-unsynced", "a batch of the queue is not synced", "queue/commit.py",
        "self._store.batch(self._ops(group), sync=self._sync)", "self._store.batch(self._ops(group), sync=False)",
    ),
    Mutant(
        "segment-unsynced", "a reference is written before the bytes that it refers to are on disk", "storage/segments.py",
        "                os.fdatasync(handle)\n", "                pass\n",
    ),
    Mutant(
        "intent-unsynced", "the name of an intent is not on disk when its batch is acknowledged", "storage/filesystem.py",
        "            sync_directory(self._root / RELAY)\n", "            pass\n",
    ),
    Mutant(
        "events-unsynced", "events leave the outbox before they are on disk", "events/segments.py",
        "    _write_all(file, data)\n    os.fsync(file.fileno())\n", "    _write_all(file, data)\n",
    ),
    Mutant(
        "trailer-from-cache", "a start trusts a trailer that may not be on disk", "events/recovery.py",
        "                add_trailer(path, size_bytes, trailer)  # again", "                pass  # again",
    ),
    Mutant(
        "torn-first-frame", "a start takes a torn first frame for damage", "events/recovery.py",
        "max(max(found, default=0), read_name(path).previous)", "max(found, default=0)",
    ),
    Mutant(
        "name-from-cache", "a start trusts the name of a directory that may not be on disk", "core/files.py",
        "        with suppress(PermissionError):  # a directory that cannot be read was not made by this user\n"
        "            sync_directory(each.parent)\n", "        pass\n",
    ),
    Mutant(
        "disk-blames-mail", "mail is held because the disk failed in the middle of it", "relay/runner.py",
        "                await relay.start(was_killed=False)\n", "                await relay.start()\n",
    ),
    Mutant(
        "stop-blames-mail", "mail is held because stops in order came in the middle of it", "queue/queue.py",
        "excused = self._stopped if was_killed else self.boot", "excused = 0 if was_killed else self.boot",
    ),
    Mutant(
        "reads-not-again", "what could not be read is not looked at again", "queue/upkeep/startup.py",
        "        if store.failed_reads == seen:\n", "        if True:\n",
    ),
    Mutant(
        "count-unread", "a message whose recipients could not be counted is never removed", "queue/messages.py",
        "    except QueueUnreadable:\n        raise\n", "",
    ),
    Mutant(
        "clock-set-back", "mail that was deferred while the clock was ahead stays deferred", "queue/deferral.py",
        "                is_set_back = self._ahead_ms() <= self._most_ahead_ms - SET_BACK_MS\n", "                pass\n",
    ),
    Mutant(
        "failed-write-ignored", "a filesystem store continues after a failed write", "storage/filesystem.py",
        "            self._failure = QueueUnavailable(f\"{self._root}: {exc}\")\n            raise self._failure from exc\n",
        "            log.error(\"%s\", exc)\n",
    ),
    Mutant(
        "left-out", "a recipient that cannot be read at an opening is left out until the next", "storage/filesystem.py",
        "exc.errno in REFUSED:", "exc.errno in ():",
    ),
    Mutant(
        "unfinished-delivered", "a recipient that a program leaves without a disposition counts as delivered", "dequeue/message.py",
        "                Disposition.DEFERRED, str(reason) or", "                Disposition.DELIVERED, str(reason) or",
    ),
    Mutant(
        "turns-of-one", "a submitter with much mail has all turns", "queue/ready/streams.py",
        "            if self._weights and taken and self._has_another_turn(pool, stream):", "            if taken:",
    ),
    Mutant(
        "rule-without-pause", "a rule that suspends an address has no effect", "egress/paths.py",
        "        if now_ms < ceiling.paused_ms:\n            return Refusal(Limit.PAUSE", "        if False:\n            return Refusal(Limit.PAUSE",
    ),
    Mutant(
        "used-forgotten", "what a tenant has used of an hour is forgotten at a restart", "queue/submitters/limits.py",
        "        } or self._stored(rules)\n", "        }\n",
    ),
    Mutant(
        "message-kept", "a message stays in memory when it is settled", "queue/queue.py",
        "        self._active.release(active)\n", "        pass\n",
    ),
)  # fmt: skip
BY_NAME = {each.name: each for each in MUTANTS}


def install(name: str) -> None:
    """Make the change of a mutant in modules that are imported from now on."""
    mutant = BY_NAME[name]
    module = "zonemta_py." + mutant.file.removesuffix(".py").replace("/", ".")
    assert module not in sys.modules, f"imported too early: {module}"
    loader: Any = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def changed(self: Any, fullname: str) -> CodeType | None:
        if not self.path.endswith(f"/zonemta_py/{mutant.file}"):
            found: CodeType | None = get_code(self, fullname)
            return found
        text = self.get_data(self.path).decode()
        assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has changed"
        return compile(text.replace(mutant.old, mutant.new), self.path, "exec")

    loader.get_code = changed
