"""Exim, set up to deliver at once, without a limit of processes, name look-ups and checks of its log.

Exim syncs spool files and directory before its 250. It takes 200 ms for the QUIT of a client and opens a
connection to the sink for each message; its documentation has no setting for either.
"""

import os
import pwd

from zonemta_py.bench.peers.peer import ForegroundPeer, find, missing_command

USER = "Debian-exim"
CONFIG = """\
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
        """Exim, root and its user."""
        if missing := missing_command("exim4", "exim4-daemon-light", root=True):
            return missing
        return "" if _uid() is not None else f"it needs a user {USER}"

    def start(self) -> None:
        """Start the daemon."""
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
        config = self.write("exim.conf", CONFIG.format(**values))
        self.run([exim, "-C", str(config), "-bdf", "-q1m"])


def _uid() -> int | None:
    try:
        return pwd.getpwnam(USER).pw_uid
    except KeyError:
        return None
