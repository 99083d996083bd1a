"""Writing to files that other processes write to, so that nothing half-written stays."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import RecordError


@contextmanager
def refusing(what: str, after: str = "") -> Iterator[None]:
    """Turn what the system refuses into RecordError: ``what``, the system's reason, ``after``."""
    try:
        yield
    except OSError as error:
        raise RecordError(f"{what}: {os.strerror(error.errno or 0)}{after}.") from None


def append_line(path: Path, text: str) -> None:
    """Write a line at the end of a file, made if missing, or leave the file as it was.

    A writer that was killed half-way leaves a line without its end; that line is closed first, or
    it would swallow this one. OSError if the line does not fit on the disk, or under a limit.
    """
    line = text.encode() + b"\n"
    with locked(path) as handle:
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
def locked(path: Path) -> Iterator[int]:
    """Hold a lock on a file, made if missing, that ends with the process; its handle appends."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Give a file new content at once: readers see the old or the new one, never a part.

    OSError if the content does not fit on the disk; the file is as it was.
    """
    with replacing(path) as fresh, fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a place for a file that takes another one's place at the end, unless something fails."""
    # Another thread may do the same, or a process of another container with the same number.
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield fresh
        fresh.replace(path)
    finally:
        with suppress(FileNotFoundError):
            fresh.unlink()
