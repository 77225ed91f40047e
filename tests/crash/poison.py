"""``zonemta`` with a defect: it is killed during a transaction for an address that begins with POISON."""

import os
import signal
from typing import Any

from zonemta_py.cli.main import main
from zonemta_py.transports.session import SmtpSession

VARIABLE = "POISON"
_real = SmtpSession.transact


async def _transact(self: SmtpSession, mail: Any, before_dot: Any) -> Any:
    if any(address.startswith(os.environ[VARIABLE]) for address in mail.recipients):
        await before_dot
        os.kill(os.getpid(), signal.SIGKILL)
    return await _real(self, mail, before_dot)


if __name__ == "__main__":
    SmtpSession.transact = _transact  # type: ignore[assignment]  # it takes any message
    main()
