"""A lease that is renewed in the background for as long as its holder lives."""

from collections.abc import Callable
from threading import Event, Thread


class Renewal:
    """Calls ``renew`` every ``every_s`` in a thread until it says False: then the lease is ``lost``."""

    def __init__(self, name: str, every_s: float, renew: Callable[[], bool]) -> None:
        self.lost = False
        self._every_s = every_s
        self._renew = renew
        self._over = Event()
        self._thread = Thread(target=self._run, name=f"renew-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            if not self._renew():
                self.lost = True
                return

    def close(self) -> None:
        """No renewal follows."""
        self._over.set()
        self._thread.join()
