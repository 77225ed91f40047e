"""How this Python was built."""

import sys
import sysconfig

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
