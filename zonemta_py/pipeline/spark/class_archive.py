"""An archive of Java's classes (CDS, JEP 350), which saves a local session the loading and checking of some 20,000 of them.

    ~/.cache/zonemta/spark/DIGEST.jsa     written by Java when a session ends
    ~/.cache/zonemta/spark/DIGEST.seen    a byte for each session without it

The archive is made by the second session of a machine: in a container that is new for each run it would cost more than it saves. Java
uses none that does not fit, and ends as always where it cannot write one, but says so on standard error: the fourth session was the last to try.
"""

import hashlib
import os
from pathlib import Path

from zonemta_py.core.clock import now_ms
from zonemta_py.core.files import private_directory

SUFFIX, SEEN = ".jsa", ".seen"
HEADER_BYTES = 4  # written last; zero until then
TRIES = range(1, 4)  # sessions before this one
WRITING_MS = 600_000  # a file without a header that is older was left by a process that was killed
UNUSED_MS = 30 * 86_400_000  # after which an archive, of another Java or Spark, is removed
# Java says on standard output why it leaves a class out.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def directory() -> Path | None:
    """Where the archives are; None without a home directory."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "zonemta" / "spark"
    except RuntimeError:
        return None


def archive_options(within: Path, *parts: str) -> str:
    """Options of Java that use or make the archive in ``within`` for ``parts``, all that it depends on; empty for neither.

    Never raises: a session without an archive starts later, that is all.
    """
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    archive = within / f"{digest}{SUFFIX}"
    try:
        # A path with a space would be two options; an archive of another user could contain any code.
        if any(character.isspace() for character in str(archive)) or not _is_private(within):
            return ""
        if _is_usable(archive):
            os.utime(archive)
            return f"-XX:SharedArchiveFile={archive} {QUIET}"
        if archive.exists() and now_ms() - archive.stat().st_mtime_ns // 1_000_000 < WRITING_MS:
            return ""
        with (within / f"{digest}{SEEN}").open("ab") as seen:
            sessions = seen.tell()
            seen.write(b".")
        if sessions not in TRIES:
            return ""
        _remove_unused(within)
    except OSError:
        return ""
    return f"-XX:ArchiveClassesAtExit={archive} {QUIET}"


def _is_private(within: Path) -> bool:
    private_directory(within)
    return within.stat().st_uid == os.geteuid()


def _is_usable(archive: Path) -> bool:
    if not archive.is_file():
        return False
    with archive.open("rb") as file:
        return any(file.read(HEADER_BYTES))


def _remove_unused(within: Path) -> None:
    for each in within.glob(f"*{SUFFIX}"):
        if now_ms() - each.stat().st_mtime_ns // 1_000_000 > UNUSED_MS:
            each.unlink(missing_ok=True)
            each.with_suffix(SEEN).unlink(missing_ok=True)
