"""Postfix: an instance of its own, on loopback only.

Tuned by its documentation for this work: no delay on input, full concurrency from the start, connection
cache for the next hop, no name look-ups, no rate accounting.
"""

import os
import pwd
import subprocess

from zonemta_py.bench.peers.peer import Peer, find, missing_command
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
        """Postfix and root."""
        return missing_command("postfix", "postfix", root=True)

    def start(self) -> None:
        """Create the instance and start it."""
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
        """Stop the instance."""
        self._command("stop")
