"""Other relays with a configuration tuned for the workloads of the benchmark: Postfix, Exim, OpenSMTPD, python-slimta, Haraka.

Each is a ``Peer`` with a directory and a port of its own, on loopback only, without name look-ups and limits of rate. What differs:

- Postfix: no delay on input, full concurrency from the start, connection cache for the next hop.
- Exim: delivers at once, without a limit of processes and without checks of its log.
- OpenSMTPD: all limits of delivery raised, its spool in a mount namespace of its own.
- python-slimta: its queue in memory, as its queue on disk does not sync either.
- Haraka: a process for each core, one next hop.

Invariants: nothing of an installed relay is changed; ``stop`` ends every process that ``start`` has made.

Callers: ``cli.bench`` and ``bench.measure``, by PEERS at the end. Example: ``PEERS["postfix"].missing()`` is empty where Postfix can run.
"""

import os
import pwd
import subprocess
from functools import cache
from pathlib import Path

from zonemta_py.bench.peer import (
    ForegroundPeer,
    NoRelay,
    Peer,
    PeerMaker,
    ZoneMtaRelay,
    find,
    missing_command,
)
from zonemta_py.core.errors import LocalError

MAIN_CF = """\
compatibility_level = 3.6
queue_directory = {directory}/spool
data_directory = {directory}/data
command_directory = {sbin}
daemon_directory = {libexec}
mail_owner = postfix
setgid_group = postdrop
myhostname = relay.bench.example
mydestination =
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
relayhost = [127.0.0.1]:{sink_port}
message_size_limit = 104857600
mailbox_size_limit = 0
alias_maps =
alias_database =
maillog_file = {directory}/log/mail.log
maillog_file_prefixes = {directory}
smtp_tls_security_level = none
in_flow_delay = 0
initial_destination_concurrency = 50
default_destination_concurrency_limit = 50
smtp_connection_cache_destinations = [127.0.0.1]:{sink_port}
smtpd_peername_lookup = no
smtpd_client_connection_count_limit = 0
default_process_limit = 150
"""

MASTER_CF = """\
127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""


class PostfixRelay(Peer):
    """A Postfix instance that relays everything to a sink."""

    name = "postfix"
    main_cf = MAIN_CF

    @classmethod
    def missing(cls) -> str:
        return missing_command("postfix", "postfix", root=True)

    def start(self) -> None:
        directory = self.directory
        for name in ("spool", "data", "log"):
            (directory / name).mkdir()
        os.chown(directory / "data", pwd.getpwnam("postfix").pw_uid, -1)
        directories = {"directory": directory, "sbin": "/usr/sbin", "libexec": "/usr/lib/postfix/sbin"}
        self.write("postfix/main.cf", self.main_cf.format(sink_port=self.sink_port, **directories))
        self.write("postfix/master.cf", MASTER_CF.format(port=self.port))
        self._command("start")
        self.pid = int((directory / "spool/pid/master.pid").read_text())

    def _command(self, verb: str) -> None:
        done = subprocess.run(
            [find("postfix") or "postfix", "-c", str(self.directory / "postfix"), verb],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LocalError(f"postfix {verb} failed: {done.stderr.strip()[-500:]}")

    def stop(self) -> None:
        self._command("stop")


# ---- Exim: delivers at once, without a limit of processes and without checks of its log.
#
# Exim syncs spool files and directory before its 250. It takes 200 ms for the QUIT of a client and opens a
# connection to the sink for each message; its documentation has no setting for either.

USER = "Debian-exim"
EXIM_CONFIG = """\
exim_path = {exim}
spool_directory = {directory}/spool
log_file_path = {directory}/log/%slog
pid_file_path = {directory}/exim.pid
notifier_socket =
primary_hostname = relay.bench.example
local_interfaces = 127.0.0.1
daemon_smtp_ports = {port}
disable_ipv6 = true
keep_environment =
add_environment = PATH=/usr/bin:/bin
deliver_drop_privilege = true
never_users =
host_lookup =
rfc1413_hosts =
tls_advertise_hosts =
prdr_enable = false
smtp_accept_max = 0
smtp_accept_max_per_connection = 0
smtp_accept_queue = 0
smtp_accept_queue_per_connection = 0
smtp_accept_max_nonmail = 0
smtp_connect_backlog = 1024
message_size_limit = 100M
recipients_max = 0
remote_max_parallel = 10
check_spool_space = 0
check_spool_inodes = 0
check_log_space = 0
check_log_inodes = 0
split_spool_directory = true
message_logs = false
acl_smtp_rcpt = recipients
acl_smtp_data = accept

begin acl
recipients:
  accept hosts = 127.0.0.0/8
  deny message = relay not permitted

begin routers
sink:
  driver = manualroute
  route_list = * 127.0.0.1::{sink_port}
  transport = sink
  self = send
  no_more

begin transports
sink:
  driver = smtp
  port = {sink_port}
  hosts_avoid_tls = *
  hosts_try_dane =
  hosts_try_chunking =
  allow_localhost = true
  multi_domain = true
  max_rcpt = 1000
  connection_max_messages = 500

begin retry
* * F,1h,1m
"""


class EximRelay(ForegroundPeer):
    """Exim 4 with a spool of its own."""

    name = "exim"

    @classmethod
    def missing(cls) -> str:
        if missing := missing_command("exim4", "exim4-daemon-light", root=True):
            return missing
        return "" if _uid() is not None else f"it needs a user {USER}"

    def start(self) -> None:
        exim, uid = find("exim4"), _uid()
        assert exim is not None
        assert uid is not None
        for name in ("spool", "log"):
            (self.directory / name).mkdir()
            os.chown(self.directory / name, uid, -1)
        values = {
            "exim": exim,
            "directory": self.directory,
            "port": self.port,
            "sink_port": self.sink_port,
        }
        config = self.write("exim.conf", EXIM_CONFIG.format(**values))
        self.run([exim, "-C", str(config), "-bdf", "-q1m"])


def _uid() -> int | None:
    try:
        return pwd.getpwnam(USER).pw_uid
    except KeyError:
        return None


# ---- OpenSMTPD: all limits of delivery raised, its spool in a mount namespace of its own.
#
# OpenSMTPD does not sync accepted mail. Its backlog for new connections is 5, so that thirty clients at once
# wait for the retries of the kernel; a connection to the sink takes few messages before it pauses.

USERS = ("opensmtpd", "opensmtpq")
SPOOL, CHROOT = Path("/var/spool/smtpd"), Path("/var/lib/opensmtpd/empty")
OPENSMTPD_CONFIG = """\
mta limit conn-delay-route 0
mta limit conn-delay-relay 0
mta limit reconn-delay-route 0
mta limit max-conn-per-host 100
mta limit max-conn-per-route 100
mta limit max-conn-per-source 100
mta limit max-conn-per-connector 100
mta limit max-conn-per-relay 100
mta limit max-conn-per-domain 100
mta limit session-mail-max 10
mta limit session-keepalive 0
mta limit task-hiwat 1000
mta limit task-lowat 500
smtp max-message-size 100M
smtp limit max-mails 100000
smtp limit max-rcpt 10000
listen on 127.0.0.1 port {port} hostname relay.bench.example
action "sink" relay host "smtp://127.0.0.1:{sink_port}" helo relay.bench.example
match from src 127.0.0.0/8 for any action "sink"
"""
MOUNTS = (("spool", str(SPOOL)), ("run", "/run"), ("resolv.conf", "/etc/resolv.conf"))


class OpenSmtpdRelay(ForegroundPeer):
    """OpenSMTPD in a mount namespace."""

    name = "opensmtpd"

    @classmethod
    def missing(cls) -> str:
        if missing := missing_command("smtpd", "opensmtpd", root=True) or missing_command(
            "unshare", "util-linux"
        ):
            return missing
        known = {entry.pw_name for entry in pwd.getpwall()}
        if not known.issuperset(USERS) or not SPOOL.is_dir() or not CHROOT.is_dir():
            return f"it needs the users {', '.join(USERS)} and the directories {SPOOL} and {CHROOT}"
        return ""

    def start(self) -> None:
        """Start it in a mount namespace in which its directories replace those of the system."""
        (self.directory / "spool").mkdir(mode=0o711)
        (self.directory / "run").mkdir(mode=0o755)
        self.write("resolv.conf", "lookup file\n")
        config = self.write(
            "smtpd.conf", OPENSMTPD_CONFIG.format(port=self.port, sink_port=self.sink_port)
        )
        mounts = [f"mount --bind '{self.directory / name}' {place}" for name, place in MOUNTS]
        script = "; ".join([*mounts, f"exec '{find('smtpd')}' -d -f '{config}'"])
        self.run(["unshare", "-m", "sh", "-ec", script])


# ---- python-slimta: its queue in memory, as its queue on disk does not sync either.
#
# Without the reverse look-up of clients and the list of all recipients in Received, which would dominate the
# figures; a retry takes five seconds.

SCRIPT = """\
import sys, signal, warnings
warnings.filterwarnings("ignore")
from gevent import monkey
monkey.patch_all()
import gevent
from slimta.edge.smtp import SmtpEdge, SmtpSession
from slimta.policy.headers import AddDateHeader, AddMessageIdHeader, AddReceivedHeader
from slimta.queue import Queue
from slimta.queue.dict import DictStorage
from slimta.relay.smtp.static import StaticSmtpRelay

NAME = "relay.bench.example"


class Session(SmtpSession):
    def BANNER_(self, reply):
        pass


class Received(AddReceivedHeader):
    def _build_for_section(self, envelope, parts):
        pass


port, sink_port = map(int, sys.argv[1:])
relay = StaticSmtpRelay("127.0.0.1", sink_port, pool_size=50, ehlo_as=NAME, idle_timeout=5)
queue = Queue(DictStorage(), relay, backoff=lambda envelope, attempts: 5 if attempts < 1000 else None)
for policy in (AddDateHeader(), AddMessageIdHeader(NAME), Received()):
    queue.add_policy(policy)
edge = SmtpEdge(("127.0.0.1", port), queue, max_size=104857600, hostname=NAME, session_class=Session)
gevent.signal_handler(signal.SIGTERM, edge.kill)
queue.start()
edge.start()
edge.get()
"""


class SlimtaRelay(ForegroundPeer):
    """python-slimta on one core."""

    name = "slimta"

    @classmethod
    def missing(cls) -> str:
        if _python() is None:
            return "no python3 in PATH has it (pip install python-slimta gevent 'setuptools<81')"
        return ""

    def start(self) -> None:
        script = self.write("relay.py", SCRIPT)
        self.run([str(_python()), str(script), str(self.port), str(self.sink_port)])


@cache
def _python() -> Path | None:
    """The first python3 in PATH that has slimta."""
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        python = Path(directory) / "python3"
        if python.is_file():
            code = "import slimta.edge.smtp, slimta.relay.smtp.static, slimta.queue.dict"
            if not subprocess.run([python, "-c", code], capture_output=True, check=False).returncode:
                return python
    return None


# ---- Haraka: a process for each core, one next hop.
#
# Haraka syncs each message before its 250 and opens a connection to the sink for each.

FILES = {
    "config/me": "relay.bench.example\n",
    "config/plugins": "bench\n",
    "config/smtp.ini": "listen=127.0.0.1:{port}\nnodes={cores}\n",
    "config/outbound.ini": """\
concurrency_max=50
enable_tls=false
received_header=disabled
temp_fail_intervals=5s*1000
""",
    # This file replaces the shipped one: a setting that is left out has no default.
    "config/connection.ini": """\
[main]
spool_after=-1
[haproxy]
enabled=false
[headers]
add_received=true
clean_auth_results=false
show_version=true
max_lines=1000
max_received=100
[max]
bytes=104857600
mime_parts=1000
line_length=512
data_line_length=992
[message]
helo=hello
close=bye
[uuid]
banner_chars=6
deny_chars=0
""",
    "config/log.ini": "[main]\nlevel=warn\ntimestamps=false\nformat=default\n",
    "config/bench.ini": "host=127.0.0.1\nport={sink_port}\n",
    "plugins/bench.js": """\
'use strict'
// Clients on loopback may relay, and all mail goes to one next hop.
exports.register = function () {{
    const hop = this.config.get('bench.ini').main
    this.hop = {{ priority: 0, exchange: hop.host, port: Number(hop.port) }}
}}
exports.hook_lookup_rdns = (next) => next(OK, 'localhost')
exports.hook_connect = (next, connection) => {{
    connection.relaying = true
    next()
}}
exports.hook_rcpt = (next) => next(OK)
exports.hook_get_mx = function (next) {{
    next(OK, {{ ...this.hop }})
}}
""",
}


class HarakaRelay(ForegroundPeer):
    """Haraka with a queue of its own."""

    name = "haraka"

    @classmethod
    def missing(cls) -> str:
        return "" if find("haraka") else "it is not installed (npm install -g Haraka)"

    def start(self) -> None:
        values = {"port": self.port, "sink_port": self.sink_port, "cores": os.cpu_count()}
        for name, text in FILES.items():
            self.write(name, text.format(**values))
        self.run([find("haraka") or "haraka", "-c", str(self.directory)])


# ---- All of them.

PEERS: dict[str, PeerMaker] = {
    "postfix": PostfixRelay,
    "exim": EximRelay,
    "haraka": HarakaRelay,
    "opensmtpd": OpenSmtpdRelay,
    "slimta": SlimtaRelay,
    "zone-mta": ZoneMtaRelay,
    "none": NoRelay,
}
