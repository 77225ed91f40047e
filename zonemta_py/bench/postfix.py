"""Postfix beside us, where it is installed: an instance of its own in a folder, on loopback only.

Tuned as far as its documentation goes for this work: no delay on input, full concurrency from the
start, connection cache for the next hop, no name look-ups, no rate accounting.
"""

import grp
import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

from zonemta_py.bench.children import free_port
from zonemta_py.clock import monotonic_s
from zonemta_py.errors import LocalError

MAIN_CF = """\
compatibility_level = 3.6
queue_directory = {folder}/spool
data_directory = {folder}/data
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
maillog_file = {folder}/log/mail.log
maillog_file_prefixes = {folder}
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


def available() -> str:
    """Empty when Postfix can be run here, else what is missing."""
    if shutil.which("postfix", path="/usr/sbin:/usr/bin:" + os.environ.get("PATH", "")) is None:
        return "Postfix is not installed (Debian: apt-get install postfix)"
    if os.geteuid() != 0:
        return "Postfix needs root to start"
    return ""


class PostfixRelay:
    """A Postfix instance that relays everything to a sink."""

    def __init__(self, folder: Path, sink_port: int) -> None:
        self.name = "postfix"
        self._folder = folder
        port = free_port()
        self.target = f"127.0.0.1:{port}"
        self._config = folder / "postfix"
        self._config.mkdir()
        for name in ("spool", "data", "log"):
            (folder / name).mkdir()
        owner = pwd.getpwnam("postfix")
        os.chown(folder / "data", owner.pw_uid, owner.pw_gid)
        grp.getgrnam("postdrop")
        (self._config / "main.cf").write_text(
            MAIN_CF.format(
                folder=folder, sink_port=sink_port, sbin="/usr/sbin", libexec="/usr/lib/postfix/sbin"
            )
        )
        (self._config / "master.cf").write_text(MASTER_CF.format(port=port))
        folder.chmod(0o755)
        self._command("start")
        self.pid = int((folder / "spool/pid/master.pid").read_text())
        self._wait_for(port)

    def _command(self, verb: str) -> None:
        done = subprocess.run(
            ["/usr/sbin/postfix", "-c", str(self._config), verb],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LocalError(f"postfix {verb} failed: {done.stderr.strip()[-500:]}")

    @staticmethod
    def _wait_for(port: int) -> None:
        end_s = monotonic_s() + 20
        while monotonic_s() < end_s:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as sock:
                    if sock.recv(3) == b"220":
                        return
            except OSError:
                continue
        raise LocalError("postfix does not answer")

    def fsyncs(self) -> int:
        """Not known from outside."""
        return -1

    def stop(self) -> None:
        """End it."""
        self._command("stop")
