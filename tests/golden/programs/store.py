"""What was committed of the corpus: hashes one can read, and the texts, compressed."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping
from difflib import unified_diff
from functools import cache
from pathlib import Path

from tests.golden.programs.program import Record

__all__ = ["HASHES", "TEXTS", "changed", "difference", "hashes", "read", "write"]

_FOLDER = Path(__file__).parent
#: A line a program, so that a commit shows which ones it changed.
HASHES = _FOLDER / "hashes.txt"
TEXTS = _FOLDER / "texts.json.xz"
_DIGITS = 12


@cache
def read() -> dict[str, Record]:
    """The committed records by name; none before the first."""
    if not TEXTS.exists():
        return {}
    with lzma.open(TEXTS, "rt", encoding="utf-8") as file:
        found: dict[str, Record] = json.load(file)
    return found


def write(records: Mapping[str, Record]) -> None:
    """Replace what is committed."""
    text = json.dumps(dict(sorted(records.items())), indent=0, sort_keys=True)
    with lzma.open(TEXTS, "wt", encoding="utf-8", preset=9 | lzma.PRESET_EXTREME) as file:
        file.write(text)
    HASHES.write_text(hashes(records))


def hashes(records: Mapping[str, Record]) -> str:
    """A line a program: its name, and each section's SHA-256, the first digits."""
    lines = []
    for name, sections in sorted(records.items()):
        known = (f"{key} {_hash(text)}" for key, text in sorted(sections.items()))
        lines.append(f"{name}: {', '.join(known)}\n")
    return "".join(lines)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def changed(before: Mapping[str, Record], after: Mapping[str, Record]) -> list[str]:
    """Names of programs that are new, gone, or no longer the same; sections say how."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, {}), after.get(name, {})
        parts = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        if parts:
            what = "new" if not old else "gone" if not new else ", ".join(parts)
            found.append(f"{name} ({what})")
    return found


def difference(before: Record, after: Record, most: int = 60) -> str:
    """A unified diff of two records of a program, its first lines."""
    lines: list[str] = []
    for key in sorted({*before, *after}):
        texts = (record.get(key, "").splitlines() for record in (before, after))
        lines += unified_diff(*texts, f"{key}, committed", f"{key}, now", lineterm="", n=2)
    more = [f"... and {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join([*lines[:most], *more])
