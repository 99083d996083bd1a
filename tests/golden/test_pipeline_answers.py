"""What our planner answers for every pipeline that Triton 3.9 made, beside Triton's own values.

Columns: versions of each pipelined tile, asynchronous copies before the loop, distinct numbers of
groups that the waits of a body leave under way; first Triton's, then ours, ``-`` for none. Our
numbers of versions come from ``versions_for_triton_stages``. The last column says why the other two
differ; versions differ nowhere but in ``registers``.

``cut``
    ``mma.sync``. The same copies in the same order, the loop cut at another place: Triton copies at
    the end of a body and we at the top of the next. So Triton's copies before the loop are ours and
    those of a body, and each of its L loads is a group: its wait is L * (ours + 1).
``late``
    The same with one version, S = 2: each of our bodies waits for its own copies, after them, so
    there are none before the loop, and both waits leave nothing.
``groups``
    ``wgmma``. Triton's product goes on while it copies; both copy S - 1 tiles before the loop.
    Each of Triton's L loads is a group, so its wait is L times ours.
``mixed``
    ``wgmma`` that takes A from registers, as its elements change after the load: A is free as early
    as with ``mma.sync``, and B later. The one wait of a body is for A, and cut as in ``cut``.
``bytes``
    TMA counts bytes at one mbarrier a version, and has no groups to wait for.
``registers``
    Pointers or rows that are known to be aligned to 2 bytes. Triton does not pipeline their loads;
    ours run as far ahead as was asked, through registers, as ``cp.async`` needs 4 bytes.
``nothing``
    One stage, or a loop without a product for which nobody asked: no pipeline in either.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.golden.cases import Case
from tests.golden.kernels import loop_of
from tests.golden.test_pipeline import (
    Emitted,
    emitted,
    gathered,
    is_whole,
    kind_of,
    matmul,
    pipelines,
)

TABLE = """
attention_sm80_ns1                                          -     0  - | 1,1   0  - | nothing
attention_sm80_ns2                                          1,1   2  0 | 1,1   0  0 | late
attention_sm90_ns2                                          2,2   2  0 | 2,2   2  0 | groups
indirect_matmul_sm80_ns2                                    1,1   2  0 | 1,1   0  0 | late
masked_other_one_sm80                                       2,2   4  2 | 2,2   2  0 | cut
masked_other_one_sm90                                       2,3   4  2 | 2,3   3  0 | mixed
masked_other_zero_sm80                                      2,2   4  2 | 2,2   2  0 | cut
masked_other_zero_sm90                                      3,3   4  2 | 3,3   4  1 | groups
matmul_sm80_bf16_128x64x32_w4_s3_Acol_Bcol                  2,2   4  2 | 2,2   2  0 | cut
matmul_sm80_bf16_128x64x32_w4_s3_Arow_Bcol                  2,2   4  2 | 2,2   2  0 | cut
matmul_sm80_fp16_128x128x32_w4_s3_Arow_Brow                 2,2   4  2 | 2,2   2  0 | cut
matmul_sm80_fp16_128x128x32_w4_s3_Arow_Brow_nodiv           -     0  - | 2,2   0  - | registers
matmul_sm80_fp16_128x128x32_w4_s4_Arow_Brow                 3,3   6  4 | 3,3   4  1 | cut
matmul_sm80_fp16_64x256x32_w4_s3_Arow_Brow                  2,2   4  2 | 2,2   2  0 | cut
matmul_sm80_fp16_64x64x32_w4_s3_Arow_Brow_kmask_nodivstride -     0  - | 2,2   0  - | registers
matmul_sm80_fp32_64x64x32_w4_s3_Acol_Brow                   2,2   4  2 | 2,2   2  0 | cut
matmul_sm80_fp64_32x32x16_w4_s3_Arow_Brow                   2,2   4  2 | 2,2   2  0 | cut
matmul_sm80_fp8e5_64x64x64_w4_s3_Arow_Brow                  2,2   4  2 | 2,2   2  0 | cut
matmul_sm80_i8_64x64x32_w4_s2_Arow_Brow                     1,1   2  0 | 1,1   0  0 | late
matmul_sm80_i8_64x64x64_w4_s2_Arow_Brow                     1,1   2  0 | 1,1   0  0 | late
matmul_sm80_i8_64x64x64_w4_s3_Acol_Brow                     2,2   4  2 | 2,2   2  0 | cut
matmul_sm89_fp16_128x128x32_w8_s3_Arow_Brow                 2,2   4  2 | 2,2   2  0 | cut
matmul_sm89_fp8e5_64x64x64_w4_s3_Arow_Bcol                  2,2   4  2 | 2,2   2  0 | cut
matmul_sm90_bf16_128x128x64_w4_s2_Arow_Brow_tma             2,2   2  - | 2,2   2  0 | bytes
matmul_sm90_fp16_128x128x32_w4_s3_Arow_Brow_tma             3,3   4  - | 3,3   4  1 | bytes
matmul_sm90_fp16_128x128x64_w4_s1_Arow_Brow                 -     0  - | 1,1   0  - | nothing
matmul_sm90_fp16_128x128x64_w4_s4_Arow_Brow                 4,4   6  4 | 4,4   6  2 | groups
matmul_sm90_fp16_128x256x64_w8_s3_Arow_Brow_tma             3,3   4  - | 3,3   4  1 | bytes
matmul_sm90_fp16_64x128x64_w4_s3_Arow_Brow_tma              3,3   4  - | 3,3   4  1 | bytes
matmul_sm90_fp16_64x64x128_w4_s3_Arow_Brow                  3,3   4  2 | 3,3   4  1 | groups
matmul_sm90_fp8e4nv_128x128x64_w4_s3_Arow_Bcol              3,3   4  2 | 3,3   4  1 | groups
matmul_sm90_fp8e5_128x128x128_w4_s3_Arow_Brow               3     2  1 | 3     2  1 | groups
matmul_sm90_fp8e5_128x128x64_w4_s3_Arow_Bcol                3,3   4  2 | 3,3   4  1 | groups
matmul_sm90_i8_128x128x64_w4_s3_Arow_Brow                   3     2  1 | 3     2  1 | groups
nested_loop_reduce_sm80                                     -     0  - | -     0  - | nothing
stream_add_fp32_ns2                                         1,1   2  0 | 1,1   0  0 | late
stream_add_fp32_ns4                                         3,3   6  4 | 3,3   4  1 | cut
upcast_i8_a_sm80                                            2,2   4  2 | 2,2   2  0 | cut
upcast_i8_a_sm90                                            2,3   4  2 | 2,3   3  0 | mixed
"""
ROWS = {line.split()[0]: line.split()[1:] for line in TABLE.strip().splitlines()}


def golden() -> list[Case]:
    """The cases of the table; another file of cases may have others."""
    every = pipelines(written_out=False) + pipelines(written_out=True)
    return [case for case in every if case["name"] in ROWS]


def answer(case: Case) -> tuple[Emitted, tuple[str, ...]]:
    """What is lowered for a case, and the tiles with versions."""
    params, kind, name = case["params"], kind_of(case), case["name"]
    stages = params.get("constexprs", {}).get("NS", params["num_stages"])
    if name.startswith("nested"):
        return Emitted({}, [], [], []), ()
    loop, only = (loop_of(case), ()) if "source_text" in params else (matmul(case), ())
    if name.startswith("indirect"):
        return emitted(loop, gathered(loop, stages, kind), params["target_sm"]), ("A", "B")
    asynchronous = case["expected"]["summary"]["mechanism"] != "none"
    tiles = tuple(tile.name for tile in loop.tiles)
    if asynchronous and "source_text" not in params and not is_whole(case):
        tiles = only = ("A",)
    versions = loop.versions(stages, kind)
    sch = loop.schedule(versions, only, async_copy=asynchronous or "auto")
    return emitted(loop, sch, params["target_sm"]), tiles


def listed(values: Iterable[Any]) -> str:
    return ",".join(map(str, values)) or "-"


@pytest.mark.parametrize("case", golden(), ids=lambda case: case["name"])
def test_the_row_of_the_table(case: Case) -> None:
    versions, before, waits, _, ours, our_before, our_waits, _, why = ROWS[case["name"]]
    summary = case["expected"]["summary"]
    buffers = [alloc["shape"][0] for alloc in case["expected"]["shared_allocs"]]
    pipelined = summary["operand_buffers"] or (buffers if summary["mechanism"] != "none" else [])
    assert versions == listed(pipelined)
    assert before == str(summary["async_copies_in_prologue"])
    assert waits == listed(sorted(set(summary["loop_async_wait_nums"])))

    found, tiles = answer(case)
    assert ours == listed(found.versions[tile] for tile in tiles)
    assert our_before == str(len(found.prologue))
    assert our_waits == listed(sorted(set(found.waits)))
    assert holds(why, versions, ours, found, summary)


def holds(why: str, versions: str, ours: str, found: Emitted, summary: dict[str, Any]) -> bool:
    """Whether a reason accounts for all that differs."""
    before, per_body = summary["async_copies_in_prologue"], len(found.body)
    waits, own = set(summary["loop_async_wait_nums"]), set(found.waits)
    if why in ("nothing", "registers"):
        runs_ahead = not {"1", "-"}.issuperset(ours.split(","))
        idle = not (before or waits or own or per_body or found.prologue)
        return idle and versions == "-" and runs_ahead == (why == "registers")
    alike = versions == ours and per_body == summary["async_copies_in_loop"]
    if why == "bytes":
        return alike and before == len(found.prologue) and not waits
    if why == "mixed":
        first = {per_body * (wait + 1) for wait in own}
        return alike and before == len(found.prologue) + 1 and waits == first
    if why == "groups":
        return alike and before == len(found.prologue) and waits == {per_body * w for w in own}
    shifted = before == len(found.prologue) + per_body
    if why == "late":
        return alike and shifted and found.copies_first and waits == own == {0}
    return alike and shifted and waits == {per_body * (wait + 1) for wait in own}


@pytest.mark.skipif("TRITON_GOLDEN" in os.environ, reason="TRITON_GOLDEN names other cases")
def test_every_case_has_a_row() -> None:
    """But for TMA at one stage, which ``test_pipeline`` skips."""
    every = pipelines(written_out=False) + pipelines(written_out=True)
    assert {case["name"] for case in every} - set(ROWS) == {
        "matmul_sm90_bf16_128x128x64_w4_s1_Arow_Brow_tma"
    }
    assert len(golden()) == len(ROWS)


@pytest.mark.skipif("TRITON_GOLDEN" in os.environ, reason="TRITON_GOLDEN names other cases")
def test_products_by_mma_sync_differ_in_the_cut_alone() -> None:
    """Those with BM, BN and BK whose copies are cp.async: all are reproduced by the conversion."""
    whole = [
        ROWS[case["name"]][-1]
        for case in golden()
        if "source_text" not in case["params"]
        and case["expected"]["summary"]["mechanism"] == "cp.async"
        and kind_of(case) == "mma.sync"
    ]
    assert whole
    assert set(whole) == {"cut", "late"}
