"""Bugs that users of TVM and TileLang met in pipelines: values right and no hazard, or refused.

Named after the reports, "tvm" for apache/tvm and "tilelang" for tile-ai/tilelang.
"""

from __future__ import annotations

from textwrap import indent
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_layout_ext as tlx
from tests.programs.pipelines import (
    LANES,
    SUM,
    ZEROS,
    block,
    copy,
    loop,
    params,
    program,
    rows,
)
from tests.programs.running import gives

F32 = '"float32"'


def test_tilelang_2668_read_then_overwrite() -> None:
    """The body reads what the body before it copied: that copy must not run ahead."""
    body = [
        copy("S", "A[0, t]", 0, name="first"),
        loop("for k in range(3)", SUM, copy("S", "A[k + 1, t]", 3)),
    ]
    with pytest.raises(tlx.ScheduleError, match="Loop k reads S before block S fills it"):
        tlx.lower(program(params(4), body))
    plain = [body[0], loop("for k in range(3)", SUM, copy("S", "A[k + 1, t]", 1))]
    a = rows(4)
    gives(program(params(4), plain), a, ZEROS, B=a[:3].sum(0)[::-1])


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "detected"])
def test_tilelang_2595_atomics(declared: bool) -> None:
    """An atomic writes the element that the next iteration copies, whatever its block says."""
    call = "T.evaluate(T.call_extern('float32', 'atomicAdd', T.address_of(A[k + 1, t]), S[t]))"
    writes = "A[k + 1, t]" if declared else ""
    atomic = block("add", "S[t]", writes, call)
    func = program(params(4), [loop("for k in range(3)", copy("S", "A[k, t]"), atomic, SUM)])
    with pytest.raises(tlx.ScheduleError, match="S reads A, which loop k writes in block add"):
        tlx.lower(func)


def test_tilelang_666_clear_before_the_loop() -> None:
    """A clear of the versioned buffer itself would reach only one version."""
    clear = copy("S", "T.float32(0)", 0, name="clear")
    body = [clear, loop("for k in range(4)", copy("S", "A[k, t]"), SUM)]
    with pytest.raises(tlx.ScheduleError, match="Buffer S, which block S fills, is used outside"):
        tlx.lower(program(params(4), body))


def test_tilelang_3031_legal_reuse() -> None:
    """A scratch buffer filled twice in a body: right as it is, and no crash with versions."""

    def func(stages: int) -> Any:
        twice = [
            copy("S", "A[k, t]", stages),
            SUM,
            copy("S", "A[k + 4, t]", 0, name="again"),
            SUM.replace("'sum'", "'sum2'"),
        ]
        return program(params(8), [loop("for k in range(4)", *twice)])

    a = rows(8)
    gives(func(1), a, ZEROS, B=a.sum(0)[::-1])
    with pytest.raises(tlx.ScheduleError, match="Buffer S is written by block S and again in loop"):
        tlx.lower(func(2))


def test_tvm_11478_more_than_48_kib() -> None:
    """The limit after opting in counts for dynamic shared memory, 49,152 bytes only for static."""
    big = 'T.sblock_alloc_buffer((8192,), "float32", scope="{}")'
    fill = loop("for i in range(256)", copy("S", "A[k, i * 32 + t]", 3, at="i * 32 + t"))
    use = block("use", "B[t], S[8191 - t]", "B[t]", "B[t] = B[t] + S[8191 - t]")
    head = f"A: T.Buffer((4, 8192), {F32}), B: T.Buffer((32,), {F32})"
    for scope in ("shared.dyn", "shared"):
        body = [f"S = {big.format(scope)}", loop("for k in range(4)", fill, use)]
        func = program(head, body, ())
        if scope == "shared":
            with pytest.raises(tlx.ScheduleError, match="98,304 bytes of memory of scope") as said:
                tlx.lower(func)
            assert "num_stages=1 is the largest that fits, or scope shared.dyn" in str(said.value)
            continue
        assert tlx.shared_buffers(tlx.lower(func)["main"]) == {"S": 98304}


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_tilelang_2613_warps_of_their_own_copy(stages: int) -> None:
    """One warp copies what another one sums up: of one version, too, it waits to be read."""
    use = block("sum", "B[t - 32], S[63 - t]", "B[t - 32]", "B[t - 32] = B[t - 32] + S[63 - t]")
    fill = loop("if t < 32", copy("S", "A[k, t]", stages))
    steps = loop("for k in range(5)", fill, loop("if t >= 32", use))
    buffer = f"S = T.sblock_alloc_buffer(({LANES},), scope='shared')"
    lanes = loop(
        "for t in T.thread_binding(64, thread='threadIdx.x')",
        loop("with T.sblock('all')", buffer, steps),
    )
    kernel = indent(loop("for x in T.thread_binding(1, thread='blockIdx.x')", lanes), "    ")
    source = f"@T.prim_func(s_tir=True)\ndef main({params(5)}):\n{kernel}\n"
    a = rows(5)
    gives(tvm.script.from_source(source), a, ZEROS, B=a.sum(0)[::-1])


@pytest.mark.parametrize(
    ("arch", "limit", "fits"), [("sm_80", 166912, 4), ("sm_89", 101376, 2), ("sm_90a", 232448, 5)]
)
def test_versions_that_do_not_fit(arch: str, limit: int, fits: int) -> None:
    """Two tiles of 16,384 and 24,576 bytes."""
    tiles = {"P": 4096, "Q": 6144}
    alloc = [
        f'{n} = T.sblock_alloc_buffer(({size},), {F32}, scope="shared.dyn")'
        for n, size in tiles.items()
    ]

    def func(stages: int) -> tvm.IRModule:
        fills = [
            loop(
                f"for i in range({size // 32})",
                copy(n, "A[k, i * 32 + t]", stages, at="i * 32 + t"),
            )
            for n, size in tiles.items()
        ]
        use = block(
            "use", "B[t], P[31 - t], Q[31 - t]", "B[t]", "B[t] = B[t] + P[31 - t] + Q[31 - t]"
        )
        head = f"A: T.Buffer((4, 6144), {F32}), B: T.Buffer((32,), {F32})"
        return program(head, [*alloc, loop("for k in range(4)", *fills, use)], ())

    target = tlx.cuda_target(arch)
    flat = tlx.lower(func(fits), target=target)["main"]
    assert sum(tlx.shared_buffers(flat).values()) == fits * 40960 <= limit < (fits + 1) * 40960
    with pytest.raises(tlx.ScheduleError) as said:
        tlx.lower(func(8), target=target)
    assert str(said.value).startswith(
        f"The buffer versions of loop k need 327,680 bytes of shared memory (P 8 x 16,384, "
        f"Q 8 x 24,576), and a block on {arch} may have {limit:,}; num_stages={fits} is the "
        "largest that fits."
    )


@pytest.mark.parametrize("stages", [2, 2**31 - 1])
def test_the_largest_number_that_fits_is_found_at_once(stages: int) -> None:
    """A search by ones from 2^31 took days."""
    body = [loop("for k in range(3)", copy("S", "A[k, t]", stages), SUM)]
    func = program(params(3), body, scope="shared.dyn")
    if stages == 2:
        tlx.lower(func)
        return
    with pytest.raises(tlx.ScheduleError, match="num_stages=1816 is the largest that fits"):
        tlx.lower(func)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_sliding_window_has_one_version(stages: int) -> None:
    """The row before lies where an earlier iteration put it, which is another version."""
    fill = block("S", "A[k, t]", "S[k % 2, t]", "S[k % 2, t] = A[k, t]").replace(
        "    S[k", f"    T.sblock_attr({{'layout_ext.num_stages': {stages}}})\n    S[k"
    )
    use = "B[t] = B[t] + S[k % 2, 31 - t] * S[(k + 1) % 2, 31 - t]"
    window = loop("if k >= 1", block("use", "B[t], S[0:2, 31 - t]", "B[t]", use))
    alloc = "S = T.sblock_alloc_buffer((2, 32), scope='shared')"
    func = program(params(6), [alloc, loop("for k in range(6)", fill, window)], ())
    if stages > 1:
        with pytest.raises(tlx.ScheduleError, match="S fills other elements of S in each iter"):
            tlx.lower(func)
        return
    a = rows(6)
    gives(func, a, ZEROS, B=(a[1:] * a[:-1]).sum(0)[::-1])


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_copy_of_growing_rows_is_pipelined(stages: int) -> None:
    """Each iteration fills other elements, and reads these alone.

    With two stages the prologue has a loop of one iteration, which was taken to run again.
    """
    fill = loop(
        "for i in range(k + 1)",
        copy("S", "A[i, t]", stages, at="i, t"),
    )
    use = "B[t] = B[t] + S[i, 31 - t]"
    sums = loop("for i in range(k + 1)", block("use", "B[t], S[i, 31 - t]", "B[t]", use))
    alloc = "S = T.sblock_alloc_buffer((4, 32), scope='shared')"
    func = program(params(4), [alloc, loop("for k in range(4)", fill, sums)], ())
    a = rows(4)
    weights = np.arange(4, 0, -1, dtype="float32")
    gives(func, a, ZEROS, B=(a * weights[:, None]).sum(0)[::-1])


def test_a_copy_by_a_bound_value_is_refused_by_name() -> None:
    """The value is bound in the iteration, before which the copy would use it."""

    def func(stages: int) -> Any:
        fill = copy("S", "A[c, t]", stages).replace("T.reads(A[c, t])", "T.reads(A[0:4, t])")
        bound = "c: T.let[T.int32] = T.Cast('int32', A[k, 0])"
        return program(params(4), [loop("for k in range(4)", bound, fill, SUM)])

    a = rows(4)
    a[:, 0] = 2, 0, 3, 1
    gives(func(1), a, ZEROS, B=a.sum(0)[::-1])
    with pytest.raises(tlx.ScheduleError, match="Block S uses c, which loop k binds"):
        tlx.lower(func(3))


@pytest.mark.parametrize("stages", [2, 4])
def test_tiles_of_a_single_iteration_do_not_overlap(stages: int) -> None:
    """TVM's planning of shared memory took an asynchronous tile for free until it was read."""
    both = block("both", "R[31 - t], S[31 - t]", "B[t]", "B[t] = R[31 - t] * S[31 - t]")
    more = copy("R", "A[k, t]", stages).replace("= A[k, t]", "= A[k, t] + T.float32(1)")
    body = [loop("for k in range(1)", more, copy("S", "A[k, t]", stages), both)]
    a = rows(1)
    gives(program(params(1), body, ("R", "S"), "shared.dyn"), a, ZEROS, B=((a + 1) * a)[0, ::-1])
