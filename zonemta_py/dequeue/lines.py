"""A stored message line by line, in the memory of one chunk. Pure."""

from collections.abc import Callable, Iterator


class Lines:
    """The lines of header, empty line and body, without CRLF or LF; no empty line when there is no body.

    ``chunks`` begins the body from its first octet.
    """

    def __init__(self, header: bytes, has_body: bool, chunks: Callable[[], Iterator[bytes]]) -> None:
        self._header = header
        self._has_body = has_body
        self._chunks = chunks
        self._lines = self._read()

    def next(self) -> bytes | None:
        """The next line, or None at the end."""
        return next(self._lines, None)

    def rewind(self) -> None:
        """Begin again."""
        self._lines = self._read()

    def _read(self) -> Iterator[bytes]:
        yield from _split(iter((self._header,)))
        if self._has_body:
            yield b""
            yield from _split(self._chunks())


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        *lines, held = (held + chunk).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in lines)
    if held:
        yield held
