"""The golden corpus is what was committed."""

from __future__ import annotations

import pytest

from tests.golden.programs import store
from tests.golden.programs.catalogue import programs, some
from tests.golden.programs.program import record


@pytest.mark.parametrize("name", some(40))
def test_a_program_gives_what_was_committed(name: str) -> None:
    committed, now = store.read()[name], record(programs()[name])
    assert now == committed, store.difference(committed, now)


def test_every_program_is_committed_under_its_name_and_hash() -> None:
    records = store.read()
    assert sorted(records) == sorted(programs())
    assert store.HASHES.read_text() == store.hashes(records)
