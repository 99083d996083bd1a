"""Pipelines of indirect loads, in nested loops, in two kernels, and before an epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
from tvm_layout_ext import decisions

F32, I32 = '"float32"', '"int32"'


def gather(index_stages: int, stages: int, extent: int) -> Any:
    """Row ``I[k]`` of A is copied; the index goes through shared memory, too."""
    body = [
        copy("R", "I[k, t]", index_stages),
        copy("S", "A[R[31 - t], t]", stages).replace(
            "T.reads(A[R[31 - t], t])", "T.reads(A[0:9, t], R[31 - t])"
        ),
        SUM,
    ]
    return program(
        f"A: T.Buffer((9, {LANES}), {F32}), I: T.Buffer(({extent}, {LANES}), {I32}), "
        f"B: T.Buffer(({LANES},), {F32})",
        [f'R = T.sblock_alloc_buffer(({LANES},), {I32}, scope="shared")',
         loop(f"for k in range({extent})", *body)],
    )  # fmt: skip


def test_an_index_that_cannot_run_ahead_is_refused_by_name() -> None:
    with pytest.raises(tlx.ScheduleError, match=r"S reads R, which .* give block R, which must"):
        tlx.lower(gather(1, 2, 4))


def test_the_index_is_loaded_one_level_earlier() -> None:
    """The index runs ahead of the copy that it feeds, which itself runs ahead of the sum."""
    with decisions.collect() as made:
        tlx.lower(gather(2, 3, 7))
    record = next(d.record for d in made if d.record is not None)
    assert [(s.fills, s.ahead) for s in record.steps] == [("R", 3), ("S", 2), (None, 0)]
    assert {b.name: b.versions for b in record.buffers} == {"R": 2, "S": 3}
    # The index of iteration k + 2 was committed one body ago: none younger may be missing.
    assert record.wait == 0
    assert record.prologue_wait == 0


#: Extents that one program must serve: none, fewer than versions, more.
EXTENTS = (0, 1, 2, 3, 5, 8)


@pytest.mark.parametrize(("index", "data"), [(2, 2), (3, 3), (2, 1), (2, 3)])
def test_indirect_loads_of_symbolic_extent(index: int, data: int) -> None:
    """The index runs further ahead than the copy that it feeds; neither may read beyond n."""
    steps = [
        copy("R", "I[k, t]", index),
        copy("S", "A[R[31 - t], t]", data).replace(
            "T.reads(A[R[31 - t], t])", "T.reads(A[0:9, t], R[31 - t])"
        ),
        SUM,
    ]
    func = program(
        f"A: T.Buffer((9, {LANES}), {F32}), i: T.handle, B: T.Buffer(({LANES},), {F32}), "
        "n: T.int32",
        [f'R = T.sblock_alloc_buffer(({LANES},), {I32}, scope="shared")',
         loop("for k in range(n)", *steps)],
        before=f"I = T.match_buffer(i, (n, {LANES}), {I32})",
    )  # fmt: skip
    lowered, a = tlx.device_program(func), rows(9)
    for n in EXTENTS:
        i = np.random.default_rng(n).integers(0, 9, (n, LANES)).astype("int32")
        want = sum((a[i[k, ::-1], np.arange(LANES)] for k in range(n)), ZEROS)
        gives(lowered, a, i, ZEROS.copy(), n, B=want[::-1])


@pytest.mark.parametrize(("outer", "inner"), [(2, 3), (3, 2), (1, 4)])
def test_nested_and_sibling_pipelines_of_symbolic_extents(outer: int, inner: int) -> None:
    """A pipeline in each iteration of another one, then one beside them; each may run no time."""
    use = block("use", "B[t], R[31 - t], S[31 - t]", "B[t]", "B[t] = B[t] + R[31 - t] * S[31 - t]")
    nest = loop(
        "for i in range(m)",
        copy("R", "A[i, t]", outer),
        loop("for k in range(n)", copy("S", "A[m + i * n + k, t]", inner), use),
    )
    beside = loop(
        "for j in range(n)",
        copy("Q", "A[j, t]", inner + 1),
        block("add", "B[t], Q[31 - t]", "B[t]", "B[t] = B[t] + Q[31 - t]"),
    )
    func = program(
        f"a: T.handle, B: T.Buffer(({LANES},), {F32}), m: T.int32, n: T.int32, rows: T.int32",
        [nest, beside],
        ("R", "S", "Q"),
        before=f"A = T.match_buffer(a, (rows, {LANES}), {F32})",
    )
    lowered = tlx.device_program(func)
    for m, n in ((0, 0), (0, 3), (3, 0), (1, 1), (3, 2), (2, 5)):
        a = rows(m + m * n + n)
        want = sum((a[i] * a[m + i * n : m + i * n + n].sum(0) for i in range(m)), ZEROS)
        gives(lowered, a, ZEROS.copy(), m, n, len(a), B=(want + a[:n].sum(0))[::-1])


@pytest.mark.parametrize("stages", [2, 4])
def test_an_epilogue_of_a_symbolic_extent_may_take_the_memory_of_the_versions(stages: int) -> None:
    """Also where the loop does not run, and no copy was waited for."""
    stage = block("out", "P[t]", "E[t]", "E[t] = P[t]")
    leave = block("leave", "E[31 - t]", "B[t]", "B[t] = E[31 - t]")
    add = block("add", "P[t], S[31 - t]", "P[t]", "P[t] = P[t] + S[31 - t]")
    func = program(
        f"a: T.handle, P: T.Buffer(({LANES},), {F32}), B: T.Buffer(({LANES},), {F32}), n: T.int32",
        [loop("for k in range(n)", copy("S", "A[k, t]", stages), add), stage, leave],
        ("S", "E"),
        "shared.dyn",
        before=f"A = T.match_buffer(a, (n, {LANES}), {F32})",
    )
    lowered = tlx.device_program(func)
    for n in EXTENTS:
        a = rows(n)
        report = gives(lowered, a, ZEROS.copy(), ZEROS.copy(), n, B=a.sum(0))
        assert report.shared_bytes == stages * LANES * 4


def one_copy(*body: str, head: str = "for k in range(6)") -> Any:
    return program(params(7), [loop(head, *body)])


def test_a_store_outside_of_blocks_is_seen() -> None:
    """It declares no region; a copy of what it writes must not run ahead of it."""
    store = "A[k + 1, t] = S[t] + T.float32(1)"
    with pytest.raises(tlx.ScheduleError, match="k writes in a statement outside of blocks, so"):
        tlx.lower(one_copy(copy("S", "A[k, t]", 2), store, SUM))
    behind = store.replace("A[k + 1, t]", "A[k, t]")
    a, want = rows(7), rows(7)[:6].sum(0)[::-1]
    gives(one_copy(copy("S", "A[k, t]", 2), behind, SUM), a, ZEROS, B=want)


def test_a_read_that_its_block_does_not_declare_is_seen() -> None:
    fill = copy("S", "A[p[0] % 7, t]", 2).replace("T.reads(A[p[0] % 7, t])", "T.reads(A[0:7, t])")
    step = block("step", "p[0]", "p[0]", "p[0] = p[0] + 3")
    index = "p = T.sblock_alloc_buffer((1,), 'int32', scope='local')"
    func = program(
        params(7),
        [index, "p[0] = 0", loop("for k in range(6)", fill, SUM, step)],
    )
    with pytest.raises(tlx.ScheduleError, match="Block S reads p, which loop k writes in block st"):
        tlx.lower(func)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("where", [False, True], ids=["if", "predicate"])
def test_a_copy_that_iterations_leave_out_is_refused(stages: int, where: bool) -> None:
    """Of one version they read what the iteration before copied; of several, something else."""

    def func(depth: int) -> Any:
        fill = copy("S", "A[k, t]", depth)
        if where:
            return one_copy(fill.replace("T.reads", "T.where(k % 2 == 0)\n    T.reads", 1), SUM)
        return one_copy(loop("if k % 2 == 0", fill), SUM)

    a = rows(7)
    gives(func(1), a, ZEROS, B=2 * a[:6:2].sum(0)[::-1])
    with pytest.raises(tlx.ScheduleError, match="S copies only where k % 2 == 0, and block sum re"):
        tlx.lower(func(stages))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("condition", ["k % 2 == 0", "k * 32 + t < 180"])
def test_copies_under_conditions_of_their_readers(stages: int, condition: str) -> None:
    use = SUM.replace("31 - t", "t")
    body = [loop(f"if {condition}", copy("S", "A[k, t]", stages)), "T.evaluate(0)"]
    a = rows(7)
    k, t = np.arange(6)[:, None], np.arange(LANES)
    kept = k % 2 == 0 if "%" in condition else k * 32 + t < 180
    gives(one_copy(*body, loop(f"if {condition}", use)), a, ZEROS, B=(a[:6] * kept).sum(0))


@pytest.mark.parametrize("head", ["if t < 7", "for j in range(t)"])
def test_a_pipeline_that_only_some_threads_run_is_refused(head: str) -> None:
    """Its barriers would never be passed."""
    inner = loop("for k in range(6)", copy("S", "A[k, t]", 2), SUM)
    with pytest.raises(tlx.ScheduleError, match=r"Loop k .* inside '.*', which depends on thread"):
        tlx.lower(one_copy(inner, head=head))
