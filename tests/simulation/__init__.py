"""The real relay in virtual time: real stores, real loopback sockets, and a clock that jumps when nothing is ready."""
