"""A lease: what a worker holds while it delivers."""

from zonemta_py.queue.lanes import Recipient
from zonemta_py.queue.live import LiveMessage


class Lease:
    """Recipients of one message at one destination, in one worker's hands; a crash gives them back."""

    __slots__ = ("destination", "live", "number", "recipients", "zone")

    def __init__(
        self, live: LiveMessage, zone: str, destination: str, recipients: list[Recipient]
    ) -> None:
        self.live = live
        self.zone = zone
        self.destination = destination
        self.recipients = recipients
        self.number: int | None = None  # of the transaction, once started
