"""Writing to files that other processes write to, so that nothing half-written stays."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def append_whole(handle: int, line: bytes) -> None:
    """Write a line at the end of a locked file, or leave the file as it was.

    A writer that was killed half-way leaves a line without its end; that line is closed first, or
    it would swallow this one.

    Raises
    ------
    OSError
        If the line does not fit on the disk, or under a limit of file sizes.
    """
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, "short write")
    except OSError:
        os.ftruncate(handle, size)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file, made if missing, that nobody else who asks for it has.

    The lock ends with the process, however that ends.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Give a file new content at once: readers see the old or the new one, never a part.

    Raises
    ------
    OSError
        If the content does not fit on the disk; the file is as it was.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        with suppress(FileNotFoundError):
            fresh.unlink()
