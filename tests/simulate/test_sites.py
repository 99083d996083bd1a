"""Names of buffers that TVM's plan gave the place, and the name, of another one."""

from __future__ import annotations

import pytest

from tvm_layout_ext.simulate.sites import Blocks

TILE, OTHER = ("shared", "float16"), ("shared", "float32")


def blocks(*more: tuple[str, str, set[str]], kept: set[str], c: tuple[str, str] = TILE) -> Blocks:
    """``A`` comes into ``S``, sums into ``T``, which goes to ``C``, and any further blocks."""
    found = [("load", "S", {"A"}), ("stage", "T", {"sums"}), ("store", "C", {"T"}), *more]
    kinds = {"S": TILE, "T": c, "U": TILE, "A": ("global", "float16"), "C": ("global", "float16")}
    listed = [(name, frozenset({written}), frozenset(read)) for name, written, read in found]
    return Blocks(listed, kinds, kept)


def test_what_is_written_and_read_at_the_place_of_another_tile_has_its_own_name() -> None:
    known = blocks(kept={"S", "A", "C", "sums"})
    assert known.replaced("S", lambda: {"sums"}) == ("S", "T", "stage")
    assert known.replaced("C", lambda: {"S"}) == ("S", "T", "store")


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (blocks(kept={"S", "T", "C"}), "nothing is missing"),
        (blocks(kept={"S", "C"}, c=OTHER), "the missing tile has another type"),
        (blocks(("more", "U", {"sums"}), kept={"S", "C"}), "two missing tiles would fit"),
        (blocks(("again", "S", {"sums"}), kept={"S", "C"}), "a block does just this"),
    ],
)
def test_names_stay_where_nothing_else_is_certain(known: Blocks, why: str) -> None:
    assert known.replaced("S", lambda: {"sums"}) is None, why


def test_statements_of_known_blocks_keep_their_names() -> None:
    known = blocks(kept={"S", "A", "C", "sums"})
    assert known.replaced("S", lambda: {"A"}) is None
    assert known.replaced(None, lambda: {"S"}) is None
    assert known.replaced("S", lambda: {"nobody's"}) is None
