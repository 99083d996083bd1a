"""What every primitive keeps: traces replay, other functions stay, what is no block is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tvm
from tvm import s_tir, te
from tvm.ir import assert_structural_equal
from tvm.s_tir.schedule.testing import verify_trace_roundtrip

import tvm_layout_ext as tlx
from tests.coalesce.test_sums_in_kernels import sums_of
from tests.programs import prefetched
from tests.programs.mapped import computed
from tests.programs.products import Product, config
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.layout import BlockedLayout
from tvm_layout_ext.schedule.install import PRIMITIVES
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.tune.space.operator import find_operator

ROWS = BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
BATCHED = Product(batch=2, epilogue=True)
RAGGED = Product(shape=(50, 72, 40), epilogue=True)
HALVES = Product(out="float16", shape=(32, 64, 32), epilogue=True, b_transposed=True)
WIDE = Product(shape=(128, 128, 128), epilogue=True)
SMALL = config((64, 64, 16))


def doubled() -> Any:
    return computed((128, 64), lambda a, i, j: a[i, j] * 2.0).mod["main"]


def centred() -> Any:
    a = te.placeholder((128, 64), "float32", "A")
    k = te.reduce_axis((0, 64), "k")
    total = te.compute((128,), lambda i: te.sum(a[i, k], axis=k), "total")
    b = te.compute((128, 64), lambda i, j: a[i, j] - total[i], "B")
    return te.create_prim_func([a, b]).with_attr("global_symbol", "main")


def attended() -> Any:
    operator = find_operator("attention")
    return operator.unscheduled((1, 1, 1, 64, 128, 64), "float16")["main"]


def staged(sch: s_tir.Schedule) -> Any:
    """The loop over chunks of 32 rows, each of which goes through shared memory."""
    outer, _ = sch.split(sch.get_loops("B")[0], [None, 32])
    sch.compute_at(sch.cache_read("B", 0, "shared"), outer)
    return outer


def _coalesced(path: str, block: str = "B") -> Callable[[s_tir.Schedule], None]:
    def apply(sch: s_tir.Schedule) -> None:
        assert sch.auto_coalesce(block).path == path

    return apply


def _cluster(sch: s_tir.Schedule) -> None:
    rows, columns = sch.get_loops("B")
    sch.bind(rows, "blockIdx.x")
    sch.bind(columns, "threadIdx.x")
    sch.cluster(rows, 2)


def _double_buffer(sch: s_tir.Schedule) -> None:
    staged(sch)
    sch.double_buffer("A_shared", 3, async_copy=True)


def _eviction_policy(sch: s_tir.Schedule) -> None:
    for policy in ("evict_first", "evict_last"):
        sch.eviction_policy("B", policy)


def _fuse_attention(sch: s_tir.Schedule) -> None:
    with tlx.cuda_target("sm_90a"):
        sch.fuse_attention("mean", keys=64)


def _fuse_rows(sch: s_tir.Schedule) -> None:
    sch.fuse_rows(["total", "B"], lanes=8)


def _share_rows(sch: s_tir.Schedule) -> None:
    sch.fuse_rows(["total", "B"], vector_bytes=4, num_threads=64, cluster=2)


def _pipeline(sch: s_tir.Schedule) -> None:
    sch.pipeline(staged(sch), 3, async_copy=False)


def _prefetch(sch: s_tir.Schedule) -> None:
    x, ko, ki = sch.get_loops("out")
    sch.reorder(x, ko, ki)
    staged, register = (sch.cache_read("out", 0, scope) for scope in ("shared", "local"))
    sch.compute_at(register, ki)
    sch.compute_at(staged, ko)
    sch.prefetch(register)


def _rasterize(sch: s_tir.Schedule) -> None:
    sch.rasterize(*sch.get_loops("B"), 3)


def _set_fragment_layout(sch: s_tir.Schedule) -> None:
    sch.set_fragment_layout(sch.cache_read("B", 0, "local"), 0, ROWS)


def _swizzle(sch: s_tir.Schedule, mode: Any) -> None:
    staged(sch)
    sch.swizzle("A_shared", 0, mode)


def _stored_by_matrix(sch: s_tir.Schedule) -> None:
    """Sums of 16 bits leave by ``stmatrix``, and by plain stores from each lane."""
    tc = sch.use_tensor_core("C")
    out = sch.cache_write(tc.result, 0, "shared")
    held = sch.cache_write(tc.result, 0, "warp")
    warps, n = sch.split(tc.n, [2, None])
    sch.reorder(warps, tc.k, tc.m, n)
    kernel = sch.add_unit_loop(warps)
    sch.bind(kernel, "blockIdx.x")
    sch.bind(warps, "threadIdx.y")
    for block in (tc.result, held):
        sch.reverse_compute_at(block, warps)
    sch.reverse_compute_at(out, kernel)
    sch.store_matrix(held, arch="sm_90a")
    sch.spread_sums(tc.result)


def _cooperative_copy(sch: s_tir.Schedule) -> None:
    copy = sch.cache_read("B", 0, "shared")
    loop, _ = sch.get_loops("B")
    sch.bind(loop, "blockIdx.x")
    sch.cooperative_copy(copy, loop, warps=(2, 1))


@dataclass(frozen=True)
class Case:
    """A schedule that uses one primitive, or several."""

    primitives: str
    func: Callable[[], Any]
    apply: Callable[[s_tir.Schedule], Any]
    #: TVM cannot prove that guarded copies cover what is read, so its debug checks are off there.
    debug_mask: str = "all"

    def __str__(self) -> str:
        return self.primitives.replace(" ", "-")


CASES = (
    *(
        Case("auto_coalesce", lambda made=made: made().mod["main"], _coalesced(path))
        for path, made in (
            ("direct", lambda: computed((100, 12), lambda a, i, j: a[i, j])),
            (
                "direct",
                lambda: computed((64, 64), lambda a, i, j: a[i, j + 4], "float16", (64, 20)),
            ),
            ("staged", lambda: computed((256, 256), lambda a, i, j: a[j, i])),
            ("staged", lambda: computed((64, 64), lambda a, i, j: a[i, j] + a[j, i])),
            (
                "shifted",
                lambda: computed(
                    (66, 1002), lambda a, i, j: a[i + 1, j + 1], "float16", (64, 1000)
                ),
            ),
            (
                "reduction",
                lambda: s_tir.Schedule(te.create_prim_func(column_sum((4096, 512), "float16"))),
            ),
        )
    ),
    Case(
        "auto_coalesce", lambda: sums_of((64, 48), 1).mod["main"], _coalesced("copy", "S"), "none"
    ),
    Case("cluster", doubled, _cluster),
    Case("double_buffer", doubled, _double_buffer),
    Case("eviction_policy", doubled, _eviction_policy),
    Case("fuse_attention", attended, _fuse_attention),
    Case("fuse_rows", centred, _fuse_rows),
    Case("fuse_rows", centred, _share_rows),
    Case("pipeline", doubled, _pipeline),
    Case("prefetch", lambda: prefetched.row_sums(4, 4), _prefetch),
    Case("rasterize", doubled, _rasterize),
    Case("set_fragment_layout", doubled, _set_fragment_layout),
    *(
        Case("swizzle", doubled, lambda sch, mode=mode: _swizzle(sch, mode))
        for mode in ("auto", "pad", (8, 2, 4), 64)
    ),
    Case("cooperative_copy", doubled, _cooperative_copy),
    Case("gemm", RAGGED.func, lambda sch: sch.gemm("C", (64, 64, 32), (2, 2), 2), "none"),
    Case("split_k", BATCHED.func, lambda sch: sch.split_k("C", 3, multiple=16)),
    Case("split_k", RAGGED.func, lambda sch: sch.split_k("C", 2, multiple=16)),
    Case("use_tensor_core", BATCHED.func, lambda sch: sch.use_tensor_core("C")),
    Case("use_tensor_core", RAGGED.func, lambda sch: sch.use_tensor_core("C")),
    Case("store_matrix spread_sums", HALVES.func, _stored_by_matrix),
    Case(
        "use_tensor_core rasterize pipeline swizzle spread_sums",
        RAGGED.func,
        lambda sch: gemm.multiply(sch, "C", SMALL | {"stages": 3}),
        "none",
    ),
    Case(
        "split_k use_tensor_core prefetch cluster",
        RAGGED.func,
        lambda sch: gemm.multiply(sch, "C", SMALL | {"split_k": 2, "prefetch": 1, "cluster": 2}),
        "none",
    ),
    Case(
        "use_tensor_core pipeline persistent specialize_warps cluster",
        WIDE.func,
        lambda sch: gemm.multiply(sch, "C", SMALL | {"wgmma": "64x64", "cluster": 2}),
        "none",
    ),
    Case(
        "persistent specialize_warps",
        WIDE.func,
        lambda sch: gemm.multiply(sch, "C", SMALL | {"wgmma": "2x64x128"}),
        "none",
    ),
)
#: Arguments behind the block or the loop.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cluster": (2,),
    "cooperative_copy": (None,),
    "eviction_policy": ("evict_last",),
    "pipeline": (2,),
    "rasterize": (None,),
    "set_fragment_layout": (0, ROWS),
    "split_k": (2,),
}


#: Primitives that take a loop.
OF_LOOPS = {"cluster", "persistent", "pipeline", "rasterize", "specialize_warps"}


def test_every_primitive_has_a_case() -> None:
    cases = {PRIMITIVES[name] for case in CASES for name in case.primitives.split()}
    assert cases == set(PRIMITIVES.values())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_trace_replays_also_from_json(case: Case) -> None:
    sch = s_tir.Schedule(case.func(), debug_mask=case.debug_mask)
    case.apply(sch)
    verify_trace_roundtrip(sch, case.func(), debug_mask=case.debug_mask)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_other_functions_stay_as_they_are(case: Case) -> None:
    other = doubled().with_attr("global_symbol", "other")
    sch = s_tir.Schedule(tvm.IRModule({"main": case.func(), "other": other}), debug_mask="none")
    sch.work_on("main")
    case.apply(sch)
    alone = s_tir.Schedule(case.func(), debug_mask="none")
    case.apply(alone)
    assert sch.mod["other"].same_as(other)
    assert_structural_equal(sch.mod["main"], alone.mod["main"])


@pytest.mark.parametrize("wrong", [None, 5, "nothing"])
@pytest.mark.parametrize("name", PRIMITIVES)
def test_what_is_no_block_or_loop_is_refused(name: str, wrong: Any) -> None:
    sch = s_tir.Schedule(doubled())
    before, steps = sch.mod, len(sch.trace.insts)
    with pytest.raises(ScheduleError, match=f"^{PRIMITIVES[name].__name__} ") as caught:
        getattr(sch, name)(wrong, *ARGUMENTS.get(name, ()))
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert sch.mod.same_as(before)
    assert len(sch.trace.insts) == steps


@pytest.mark.parametrize("name", sorted(PRIMITIVES.keys() - OF_LOOPS))
def test_a_loop_is_no_block(name: str) -> None:
    sch = s_tir.Schedule(doubled())
    with pytest.raises(ScheduleError, match="needs a block or its name, not "):
        getattr(sch, name)(sch.get_loops("B")[0], *ARGUMENTS.get(name, ()))
