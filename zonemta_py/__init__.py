"""An outbound SMTP relay for bulk mail: zones, an embedded LevelDB queue, an exact ledger.

What a program may use is in ``__all__`` (docs/library.md); everything else is private and may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonemta_py.config.load import load_config, parse_config
    from zonemta_py.config.schema import Config
    from zonemta_py.core.errors import ConfigError, LocalError, NotAccepted
    from zonemta_py.delivery.bounce_hook import Bounce
    from zonemta_py.dequeue.standalone import Queue
    from zonemta_py.policies import Envelope
    from zonemta_py.relay.relay import Relay
    from zonemta_py.schedule.retry import RetryContext
    from zonemta_py.smtp.reply import Reply
    from zonemta_py.transports.interface import LocalMessage, Parcel

__version__ = "0.1.0"

__all__ = [
    "Bounce",
    "Config",
    "ConfigError",
    "Envelope",
    "LocalError",
    "LocalMessage",
    "NotAccepted",
    "Parcel",  # deprecated: the old name of LocalMessage
    "Queue",
    "Relay",
    "Reply",
    "RetryContext",
    "load_config",
    "parse_config",
]

_PLACES = {
    "Relay": "zonemta_py.relay.relay",
    "Config": "zonemta_py.config.schema",
    "Queue": "zonemta_py.dequeue.standalone",
    "load_config": "zonemta_py.config.load",
    "parse_config": "zonemta_py.config.load",
    "Bounce": "zonemta_py.delivery.bounce_hook",
    "ConfigError": "zonemta_py.core.errors",
    "Envelope": "zonemta_py.policies",
    "RetryContext": "zonemta_py.schedule.retry",
    "LocalError": "zonemta_py.core.errors",
    "NotAccepted": "zonemta_py.core.errors",
    "LocalMessage": "zonemta_py.transports.interface",
    "Parcel": "zonemta_py.transports.interface",
    "Reply": "zonemta_py.smtp.reply",
}


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: a command that prints its help needs no relay."""
    if name not in _PLACES:
        raise AttributeError(f"module 'zonemta_py' has no attribute '{name}'")
    return getattr(import_module(_PLACES[name]), name)
