"""How this Python was built, and its garbage collection."""

import gc
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager

SYSTEM_PREFIXES = ("/usr",)  # of distributions, which all build with profiles


def slow_build() -> str:
    """A warning if this interpreter was built without profile-guided optimisation; else empty."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    if not arguments or "--enable-optimizations" in arguments or sys.base_prefix in SYSTEM_PREFIXES:
        return ""
    return (
        f"the Python in {sys.base_prefix} was built without --enable-optimizations, and is a sixth slower than "
        "that of a distribution"
    )


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection meanwhile.

    For work in a thread that makes many objects which stay: each full collection visits all of them with the
    interpreter lock held, 0.1 s for a configuration of 5,000 tenants.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
