"""Haraka: a process for each core, no name look-ups, one next hop.

Haraka syncs each message before its 250 and opens a connection to the sink for each.
"""

import os

from zonemta_py.bench.peers.peer import ForegroundPeer, find

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
        """Haraka."""
        return "" if find("haraka") else "it is not installed (npm install -g Haraka)"

    def start(self) -> None:
        """Start a cluster of processes."""
        values = {"port": self.port, "sink_port": self.sink_port, "cores": os.cpu_count()}
        for name, text in FILES.items():
            self.write(name, text.format(**values))
        self.run([find("haraka") or "haraka", "-c", str(self.directory)])
