"""Segments of the event log as earlier versions sealed them."""

from pathlib import Path

import zstandard

from zonemta_py.events.segment_reading import whole_frames


def of_earlier_version(sealed: bytes) -> bytes:
    """A sealed segment without trailer, its frames without checksums."""
    compressor = zstandard.ZstdCompressor(level=3)
    frames = whole_frames(sealed, Path("sealed"))
    return b"".join(compressor.compress(frame.lines) for frame in frames)
