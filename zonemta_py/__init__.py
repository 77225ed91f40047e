"""An outbound SMTP relay for bulk mail: zones, an embedded LevelDB queue, an event log of every recipient.

The public API is ``__all__`` here, in ``zonemta_py.dequeue``, in ``zonemta_py.policies`` and in
``zonemta_py.queue.kannader`` (docs/library.md); everything else is private and may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zonemta_py.core.version import __version__ as __version__

if TYPE_CHECKING:  # for type checkers; tests/test_package.py compares this with _NAMES_OF
    from zonemta_py.config.load import load_config as load_config
    from zonemta_py.config.load import parse_config as parse_config
    from zonemta_py.config.schema import Config as Config
    from zonemta_py.core.errors import ConfigError as ConfigError
    from zonemta_py.core.errors import LocalError as LocalError
    from zonemta_py.core.errors import NotAccepted as NotAccepted
    from zonemta_py.core.errors import QueueCorrupt as QueueCorrupt
    from zonemta_py.core.errors import QueueLocked as QueueLocked
    from zonemta_py.core.errors import QueueUnavailable as QueueUnavailable
    from zonemta_py.core.errors import ZonemtaError as ZonemtaError
    from zonemta_py.delivery.report_composer import Bounce as Bounce
    from zonemta_py.dequeue.standalone import Queue as Queue
    from zonemta_py.policies import Envelope as Envelope
    from zonemta_py.relay.relay import Relay as Relay
    from zonemta_py.schedule.retry import RetryContext as RetryContext
    from zonemta_py.smtp.reply import Reply as Reply
    from zonemta_py.storage.interface import Space as Space
    from zonemta_py.storage.interface import Store as Store
    from zonemta_py.storage.interface import View as View
    from zonemta_py.storage.memory import MemoryStore as MemoryStore
    from zonemta_py.transports.local import LocalMessage as LocalMessage
    from zonemta_py.transports.local import Parcel as Parcel

# A module is imported when one of its names is used, so that a command loads only what it needs.
_NAMES_OF = {
    "zonemta_py.config.load": ("load_config", "parse_config"),
    "zonemta_py.config.schema": ("Config",),
    "zonemta_py.core.errors": (
        "ConfigError", "LocalError", "NotAccepted", "QueueCorrupt", "QueueLocked", "QueueUnavailable", "ZonemtaError",
    ),
    "zonemta_py.delivery.report_composer": ("Bounce",),
    "zonemta_py.dequeue.standalone": ("Queue",),
    "zonemta_py.policies": ("Envelope",),
    "zonemta_py.relay.relay": ("Relay",),
    "zonemta_py.schedule.retry": ("RetryContext",),
    "zonemta_py.smtp.reply": ("Reply",),
    "zonemta_py.storage.interface": ("Space", "Store", "View"),
    "zonemta_py.storage.memory": ("MemoryStore",),
    "zonemta_py.transports.local": ("LocalMessage", "Parcel"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name when it is used first."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'zonemta_py' has no attribute '{name}'")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
