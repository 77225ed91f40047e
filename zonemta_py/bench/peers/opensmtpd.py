"""OpenSMTPD with all limits of delivery raised and its spool in a mount namespace of its own.

OpenSMTPD does not sync accepted mail. Its backlog for new connections is 5, so that thirty clients at once
wait for the retries of the kernel; a connection to the sink takes few messages before it pauses.
"""

import pwd
from pathlib import Path

from zonemta_py.bench.peers.peer import ForegroundPeer, find, missing_command

USERS = ("opensmtpd", "opensmtpq")
SPOOL, CHROOT = Path("/var/spool/smtpd"), Path("/var/lib/opensmtpd/empty")
CONFIG = """\
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
        """OpenSMTPD, root, its users and directories."""
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
        config = self.write("smtpd.conf", CONFIG.format(port=self.port, sink_port=self.sink_port))
        mounts = [f"mount --bind '{self.directory / name}' {place}" for name, place in MOUNTS]
        script = "; ".join([*mounts, f"exec '{find('smtpd')}' -d -f '{config}'"])
        self.run(["unshare", "-m", "sh", "-ec", script])
