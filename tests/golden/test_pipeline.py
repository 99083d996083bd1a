"""Our pipelines against those that Triton 3.9 made of the same loops.

Two counts need a conversion, as Triton and this package put the steps of a body in another order.

======================  ===========================  ==========================================
what                    Triton, L loads, S stages    here, N versions
======================  ===========================  ==========================================
group                   one for each load            one for all loads of a body
body, ``mma.sync``      wait, compute, copy          wait, copy, compute
body, ``wgmma``         wait, compute (goes on       wait, copy, compute
                        meanwhile), copy
wait for all but        L * (S - 2) groups           N - 2 groups
======================  ===========================  ==========================================

``mma.sync`` (N = S - 1): when Triton waits, S - 1 tiles were copied; here N - 1 were, and the Nth
is copied before the body computes. So Triton's prologue is ours and the copies of a body, and its
wait is L times ours plus one. With N = 1 a body here waits after its copies, for all of them, as
Triton's does; ``async_copy=True`` makes these asynchronous. ``wgmma`` (N = S): N - 1 tiles were
copied in either, Triton's prologue is ours, its wait L times ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.golden import cases
from tests.golden.cases import Case, case_id
from tests.golden.kernels import has_product, loop_of
from tests.golden.pipeline_loops import TYPES, Loop, Tile
from tvm_layout_ext import decisions

#: By what is copied: tiles that are never needed together share their memory, and its name.
COPY = re.compile(r'\), T\.address_of\((\w+)_1\[.*"async", "c[ag]"')
WAIT = re.compile(r'T\.ptx\.cp\((\d+), "async", "wait_group"')
LOOP = "for k in range(n):"


def name_of(case: Case) -> str:
    return f"{case_id(case)}-{case['name']}"


def pipelines(*, written_out: bool) -> list[Case]:
    """The cases given as source text, or those that say BM, BN and BK."""
    found = cases.of_kinds("pipeline")
    return [case for case in found if ("source_text" in case["params"]) == written_out]


def of_mechanism(mechanism: str) -> list[Case]:
    found = pipelines(written_out=False)
    return [c for c in found if c["expected"]["summary"]["mechanism"] == mechanism]


def kind_of(case: Case) -> str:
    return "wgmma" if case["params"]["target_sm"] >= 90 else "mma.sync"


@dataclass(frozen=True)
class Emitted:
    """What the lowered program of a loop does.

    ``versions`` of each tile, by the bytes that are allocated; tiles copied asynchronously before
    the loop and in one body; groups that may be under way after each wait of a body; and whether a
    body copies before it waits.
    """

    versions: dict[str, int]
    prologue: list[str]
    body: list[str]
    waits: list[int]
    copies_first: bool = False

    def triton_prologue(self, kinds: dict[str, str]) -> int:
        """Copies before Triton's loop, given what multiplies each tile."""
        return len(self.prologue) + sum(kinds[name] == "mma.sync" for name in self.body)

    def triton_wait(self, kinds: dict[str, str]) -> int:
        """Groups under way after Triton's waits: one wait, for the tile that is needed first."""
        (wait,) = set(self.waits)
        cut = any(kinds[name] == "mma.sync" for name in self.body)
        return len(self.body) * (wait + (cut and not self.copies_first))


def emitted(loop: Loop, sch: Any, sm: int) -> Emitted:
    # The package refuses asynchronous copies of FP8 before sm_89; the plan is the same there.
    if any(tile.dtype.startswith("float8") for tile in loop.tiles):
        sm = max(sm, 89)
    target = tlx.cuda_target("sm_90a" if sm == 90 else f"sm_{sm}")
    text = tlx.lower(sch, target=target).script()
    before, _, rest = text.partition(LOOP)
    # Of tiles that are never needed together only one is allocated; it has one version.
    size = dict(re.findall(r"(\w+)_shared = T.alloc_\w+\(\((\d+),", text))
    waits = [int(n) for n in WAIT.findall(rest)]
    first_wait, first_copy = WAIT.search(rest), COPY.search(rest)
    copies_first = bool(first_wait and first_copy and first_copy.start() < first_wait.start())
    return Emitted(
        {t.name: int(size.get(t.name, t.elements)) // t.elements for t in loop.tiles},
        COPY.findall(before),
        COPY.findall(rest),
        waits if copies_first else waits[:-1],  # The last follows the loop.
        copies_first,
    )


def matmul(case: Case) -> Loop:
    params = case["params"]
    m, n, k = (params[name] for name in ("BM", "BN", "BK"))
    dtype = TYPES[params["elem"]]
    known = {
        "aligned": params["ptr_divisible_by_16"],
        "dense": params["strides_divisible_by_16"],
        "masked": params["k_mask"],
    }
    a = (m, k) if params["a_order"] == "row" else (k, m)
    b = (k, n) if params["b_order"] == "row" else (n, k)
    tiles = (Tile("A", a, dtype, **known), Tile("B", b, dtype, **known))
    return Loop(tiles, [("A", "B")], 32 * params["num_warps"])


def check(loop: Loop, case: Case, stages: int, only: tuple[str, ...] = ()) -> None:
    """Compare a loop with the versions that Triton's stages mean with what Triton made of it."""
    summary, kinds = case["expected"]["summary"], loop.kinds(kind_of(case))
    versions = loop.versions(stages, kind_of(case))
    sch = loop.schedule(versions, only, async_copy=stages > 1)
    found = emitted(loop, sch, case["params"]["target_sm"])
    loaded = only or tuple(t.name for t in loop.tiles)
    assert [found.versions[name] for name in loaded] == buffers_of(case)
    assert sorted(found.body) == sorted(loaded)
    assert len(found.body) == summary["async_copies_in_loop"]
    assert found.triton_prologue(kinds) == summary["async_copies_in_prologue"]
    if summary["mechanism"] == "cp.async":
        assert {found.triton_wait(kinds)} == set(summary["loop_async_wait_nums"])
    else:
        # TMA counts bytes at one mbarrier a version, not groups.
        assert summary["mbarriers"] == [versions["A"]]


def buffers_of(case: Case) -> list[int]:
    """Versions of each pipelined tile; Triton's summary has only operands of a product."""
    expected = case["expected"]
    if expected["summary"]["operand_buffers"]:
        return expected["summary"]["operand_buffers"]
    return [alloc["shape"][0] for alloc in expected["shared_allocs"]]


def is_whole(case: Case) -> bool:
    """Whether Triton pipelines both operands; it drops a B of bytes that needs transposing."""
    return len(case["expected"]["summary"]["operand_buffers"]) == 2


@pytest.mark.parametrize("case", of_mechanism("cp.async"), ids=name_of)
def test_matmul(case: Case) -> None:
    check(matmul(case), case, case["params"]["num_stages"], () if is_whole(case) else ("A",))


@pytest.mark.parametrize("case", of_mechanism("tma"), ids=name_of)
def test_matmul_by_tma(case: Case) -> None:
    """Versions, and how far ahead copies run, whatever instruction copies."""
    if case["params"]["num_stages"] == 1:
        pytest.skip("TMA copies asynchronously at one stage, too; without TMA that gains nothing")
    check(matmul(case), case, case["params"]["num_stages"])


@pytest.mark.parametrize("case", of_mechanism("none"), ids=name_of)
def test_matmul_without_asynchronous_copies(case: Case) -> None:
    """One stage, or pointers or rows known to be aligned to 2 bytes: cp.async needs 4."""
    params, loop = case["params"], matmul(case)
    versions = loop.versions(params["num_stages"], kind_of(case))
    with decisions.collect() as made:
        found = emitted(loop, loop.schedule(versions), params["target_sm"])
    assert found.prologue == found.body == []
    why = {str(d.text) for d in made if d.maker == "LowerAsyncCopy" and d.refused}
    assert bool(why) == (params["num_stages"] > 1)
    assert all("not known to start at a multiple of" in text for text in why)


def by_source(mechanism: str) -> list[Case]:
    found = pipelines(written_out=True)
    return [c for c in found if c["expected"]["summary"]["mechanism"] == mechanism]


@pytest.mark.parametrize("case", by_source("cp.async"), ids=name_of)
def test_loop_given_by_its_source(case: Case) -> None:
    params, loop = case["params"], loop_of(case)
    # A number of stages at the loop itself wins.
    stages = params["constexprs"].get("NS", params["num_stages"])
    if any(tile.index for tile in loop.tiles):
        check_indirect(loop, case, stages)
    else:
        check(loop, case, stages)


def check_indirect(loop: Loop, case: Case, stages: int) -> None:
    """Operands as Triton's; indices have a version more, see ``pipeline_plan``, and fly as long.

    Their wait is the operands' here; Triton waits for them apart, where levels are staged.
    """
    summary, kind = case["expected"]["summary"], kind_of(case)
    found = emitted(loop, gathered(loop, stages, kind), case["params"]["target_sm"])
    assert [found.versions[name] for name in "AB"] == buffers_of(case)
    staged = ["A", "B"] + ["IDX"] * (stages > 2)
    assert sorted(found.body) == staged
    assert len(found.body) == summary["async_copies_in_loop"]
    assert found.triton_prologue(loop.kinds(kind)) == summary["async_copies_in_prologue"]
    if stages == 2:
        assert {found.triton_wait(loop.kinds(kind))} == set(summary["loop_async_wait_nums"])


def gathered(loop: Loop, stages: int, kind: str = "mma.sync") -> Any:
    """A loop whose B is gathered by IDX, maybe by IDX2, with Triton's split of the stages."""
    sch = s_tir.Schedule(tvm.script.from_source(loop.source()))
    levels = {"A": 0, "B": 0, "IDX": 1, "IDX2": 2}
    for tile in loop.tiles:
        level = levels[tile.name]
        versions = tlx.versions_for_triton_stages(
            stages, kind, level=level, levels=1 + max(levels[t.name] for t in loop.tiles)
        )
        if level == 0 or versions > 1:
            sch.double_buffer(f"{tile.name}_shared", versions, async_copy=True)
    return sch


@pytest.mark.parametrize("case", by_source("none"), ids=name_of)
def test_loop_that_triton_leaves_alone(case: Case) -> None:
    """At one stage, or with no product and no number at the loop: nobody asked for versions."""
    assert case["expected"]["summary"]["async_copies_in_loop"] == 0
    if has_product(case):
        loop = loop_of(case)
        sch = loop.schedule(loop.versions(case["params"]["num_stages"], "mma.sync"))
        one = dict.fromkeys((tile.name for tile in loop.tiles), 1)
        assert emitted(loop, sch, 80) == Emitted(one, [], [], [])
        return
    text = tlx.lower(_NESTED, target=tlx.cuda_target("sm_80")).script()
    assert "cp(" not in text
    assert "shared[" not in text


_NESTED = tvm.script.from_source("""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((32, 256), "float16"), Z: T.Buffer((4, 32), "float32")) -> None:
    for t in T.thread_binding(32, thread="threadIdx.x"):
        for i in range(4):
            for k in range(256):
                with T.sblock("sum"):
                    T.reads(A[t, k])
                    T.writes(Z[i, t])
                    if k == 0:
                        Z[i, t] = T.float32(0)
                    Z[i, t] = Z[i, t] + T.Cast("float32", A[t, k])
""")


def test_every_case_is_compared() -> None:
    mechanisms = ("cp.async", "tma", "none")
    compared = [c for m in mechanisms for c in [*of_mechanism(m), *by_source(m)]]
    assert sorted(map(case_id, compared)) == sorted(map(case_id, cases.of_kinds("pipeline")))


@pytest.mark.parametrize(("stages", "kind"), [(0, "mma.sync"), (True, "wgmma"), (2, "mma")])
def test_refuses_what_is_no_number_of_stages(stages: int, kind: str) -> None:
    with pytest.raises(tlx.ScheduleError, match=r"num_stages must be|kind must be"):
        tlx.versions_for_triton_stages(stages, kind)
