from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tests.programs.pipelines import block, copy, loop, program
from tvm_layout_ext.build import check_fits, compile_checked, compile_lowered
from tvm_layout_ext.errors import LayoutExtError
from tvm_layout_ext.transform import mark_annotated

Break = Callable[[pytest.MonkeyPatch], None]


def _asserting(_func: object) -> bool:
    raise AssertionError("this cannot be")


#: What breaks the first of our passes, and what it raises then.
PASS_MISTAKES: list[tuple[Break, type[Exception]]] = [
    (lambda patch: patch.delattr(mark_annotated, "is_annotated"), NameError),
    (lambda patch: patch.setattr(mark_annotated, "is_annotated", None), TypeError),
    (lambda patch: patch.setattr(mark_annotated, "is_annotated", _asserting), AssertionError),
]


def _scale(rows: int = 64, bind: bool = True) -> s_tir.Schedule:
    sch = computed((rows, 32), lambda a, i, j: a[i, j] * tvm.tirx.const(3, "float32"))
    block = sch.get_sblock("B")
    if bind:
        i, j = sch.get_loops(block)
        sch.bind(i, "blockIdx.x")
        sch.bind(j, "threadIdx.x")
    return sch


def _whole_input_shared(rows: int, scope: str = "shared") -> s_tir.Schedule:
    """One block of 32 threads that copies all rows before it uses the first."""
    sch = _scale(rows, bind=False)
    block = sch.get_sblock("B")
    one, _ = sch.split(sch.get_loops(block)[0], [1, None], preserve_unit_iters=True)
    sch.bind(one, "blockIdx.x")
    copy = sch.cache_read(block, 0, scope)
    sch.compute_at(copy, one)
    for target in (copy, block):
        sch.bind(sch.get_loops(target)[-1], "threadIdx.x")
    return sch


def test_every_kind_of_source_builds() -> None:
    sch = _scale()
    sources = [sch, sch.mod, sch.mod["main"], tlx.lower(sch)]
    codes = {tlx.build(s).mod.imports[0].inspect_source() for s in sources}
    assert len(codes) == 1
    assert "threadIdx.x" in codes.pop()


def test_threads_build_at_the_same_time() -> None:
    sch = _scale()
    alone = tlx.build(sch).mod.imports[0].inspect_source()
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: tlx.build(sch).mod.imports[0].inspect_source(), range(8)))
    assert codes == [alone] * 8


def test_lower_can_be_built_by_plain_tvm() -> None:
    sch = _scale()
    plain = tvm.compile(tlx.lower(sch), target=tlx.default_target())
    assert plain.mod.imports[0].inspect_source() == tlx.build(sch).mod.imports[0].inspect_source()


def test_refuses_a_gpu_function_that_binds_no_thread() -> None:
    with pytest.raises(tlx.TargetError, match="Function main binds no GPU thread"):
        tlx.build(_scale(bind=False), target="cuda")


def test_plain_tvm_refuses_an_annotated_function_that_binds_no_thread() -> None:
    sch = _scale(bind=False)
    sch.eviction_policy("B", "evict_last")
    with pytest.raises(tlx.TargetError, match="Function main binds no GPU thread"):
        tvm.compile(sch.mod, target=tlx.default_target())


def test_refuses_when_only_one_of_two_functions_binds_a_thread() -> None:
    bound, bare = _scale().mod["main"], _scale(bind=False).mod["main"]
    mod = tvm.IRModule(
        {
            "one": bound.with_attr("global_symbol", "one"),
            "two": bare.with_attr("global_symbol", "two"),
        }
    )
    with pytest.raises(tlx.TargetError, match="Function two binds no GPU thread"):
        tlx.build(mod, target="cuda")


def _row_max_left_alone(annotated: bool) -> s_tir.Schedule:
    a = te.placeholder((64, 128), "float32", "A")
    k = te.reduce_axis((0, 128), "k")
    mx = te.compute((64,), lambda i: te.max(a[i, k], axis=k), name="mx")
    out = te.compute((64, 128), lambda i, j: a[i, j] / mx[i], name="out")
    sch = s_tir.Schedule(te.create_prim_func([a, out]))
    i, j = sch.get_loops(sch.get_sblock("out"))
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    if annotated:
        sch.eviction_policy("out", "evict_last")
    return sch


@pytest.mark.parametrize("annotated", [False, True])
def test_refuses_a_block_beside_a_kernel_that_is_left_on_the_host(annotated: bool) -> None:
    sch = _row_max_left_alone(annotated)
    a = np.ones((64, 128), "float32")
    uses = [tlx.build, tlx.lower, tlx.device_program, lambda s: tlx.simulate(s, a)]
    if annotated:
        uses.append(lambda s: tvm.compile(s.mod, target=tlx.default_target()))
    for use in uses:
        with pytest.raises(tlx.TargetError, match=r"Block mx of .* touch mx, A .*bind") as e:
            use(sch)
        assert "\n" not in str(e.value)


def test_a_stage_left_on_the_host_is_told_by_its_own_name() -> None:
    """TE cuts a sum into two blocks: mx_init was named, which auto_coalesce knows nothing of."""
    a = tlx.te.placeholder((64, 128), "float32", name="A")
    k = tlx.te.reduce_axis((0, 128), name="k")
    mx = tlx.te.compute((64,), lambda i: tlx.te.max(a[i, k], axis=k), name="mx")
    out = tlx.te.compute((64, 128), lambda i, j: a[i, j] - mx[i], name="out")
    s = tlx.create_schedule(out.op)
    for axis, tag in zip(out.op.axis, ("blockIdx.x", "threadIdx.x"), strict=True):
        s[out].bind(axis, tlx.te.thread_axis(tag))
    with pytest.raises(tlx.TargetError, match=r"^Block mx of .* touch mx, A .*s\[\"mx\"\]\.auto"):
        tlx.build(s)
    s["mx"].auto_coalesce()
    assert tlx.build(s) is not None


def test_stock_tvm_still_compiles_a_block_left_on_the_host_without_annotations() -> None:
    source = tvm.compile(_row_max_left_alone(False).mod, target=tlx.default_target())
    assert source.mod.imports[0].inspect_source()


def test_builds_for_the_host_where_the_user_asks_for_it() -> None:
    assert tlx.build(_scale(bind=False), target="llvm") is not None


def test_refuses_more_shared_memory_than_a_block_may_have() -> None:
    sch = _whole_input_shared(4096)
    with pytest.raises(
        tlx.TargetError, match=r"524,288 bytes .*A_shared 524,288.* sm_90a may have 232,448"
    ):
        tlx.build(sch)


def test_refuses_a_shared_buffer_that_two_kernels_use() -> None:
    sch = _scale(bind=False)
    block = sch.get_sblock("B")
    for target in (sch.cache_read(block, 0, "shared"), block):
        sch.bind(sch.get_loops(target)[1], "threadIdx.x")
    with pytest.raises(tlx.TargetError, match="shared buffer A_shared in more than one kernel"):
        tlx.build(sch)


def test_the_limit_is_the_targets_own() -> None:
    sch = _whole_input_shared(1024, "shared.dyn")
    assert tlx.build(sch, target=tlx.cuda_target("sm_80")) is not None
    with pytest.raises(tlx.TargetError, match=r"131,072 bytes .*sm_86 may have 101,376"):
        tlx.build(sch, target=tlx.cuda_target("sm_86"))


def test_static_shared_memory_has_its_own_limit() -> None:
    assert tlx.build(_whole_input_shared(384)) is not None
    with pytest.raises(
        tlx.TargetError,
        match=r"49,280 bytes of static .* may have 49,152; scope shared.dyn may have 232,448",
    ):
        tlx.build(_whole_input_shared(385))


@pytest.mark.parametrize(
    ("scope", "fits", "more"),
    [
        (
            "shared",
            384,
            r"49,280 bytes of static .* may have 49,152; scope shared.dyn may have 101,",
        ),
        ("shared.dyn", 792, r"101,504 bytes .*A_shared.dyn 101,504.* sm_86 may have 101,376"),
    ],
)
def test_the_simulated_gpu_has_the_targets_shared_memory(scope: str, fits: int, more: str) -> None:
    target = tlx.cuda_target("sm_86")
    data = np.arange(fits * 32, dtype="float32").reshape(fits, 32)
    report = tlx.simulate(_whole_input_shared(fits, scope), data, target=target)
    np.testing.assert_array_equal(report.outputs["B"], data * 3)
    assert report.shared_bytes == data.nbytes
    data = np.zeros((fits + 1, 32), "float32")
    program = tlx.device_program(_whole_input_shared(fits + 1, scope), target=target)
    for source in (_whole_input_shared(fits + 1, scope), program):
        with pytest.raises(tlx.TargetError, match=more):
            tlx.simulate(source, data, target=target)


def test_a_failed_check_inside_tvm_is_one_sentence() -> None:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def exchange(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")) -> None:
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("exchange"):
                    T.reads(A[0:64])
                    T.writes(B[0:64])
                    p = T.sblock_alloc_buffer((32, 2), scope="warp")
                    for i in range(2):
                        p[tx, i] = A[tx * 2 + i]
                    for i in range(2):
                        B[tx * 2 + i] = p[tx, i]

    for use in (tlx.build, tlx.device_program):
        with pytest.raises(
            tlx.ScheduleError, match="cannot lower this program; it says: LowerWarpMemory"
        ) as error:
            use(exchange)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("extents", "problem"),
    [
        ({"threadIdx.x": 2048}, r"binds 2,048 iterations to threadIdx.x, which has at most 1,024"),
        ({"threadIdx.z": 128}, r"binds 128 iterations to threadIdx.z, which has at most 64"),
        ({"threadIdx.x": 64, "threadIdx.y": 32}, r"2,048 threads a block \(64 x 32\)"),
        ({"threadIdx.x": 1, "blockIdx.y": 70000}, r"70,000 iterations to blockIdx.y, .* 65,535"),
    ],
)
def test_refuses_a_launch_that_no_gpu_makes(extents: dict[str, int], problem: str) -> None:
    a = te.placeholder(tuple(extents.values()), "float32", "A")
    b = te.compute(a.shape, lambda *i: a(*i), name="B")
    s = tlx.create_schedule(b.op)
    for axis, tag in zip(b.op.axis, extents, strict=True):
        s[b].bind(axis, te.thread_axis(tag))
    with pytest.raises(tlx.TargetError, match=problem):
        tlx.build(s, [a, b])
    with pytest.raises(tlx.SimulationError, match=problem):
        tlx.simulate(s, np.zeros(tuple(extents.values()), "float32"), args=[a, b])


@pytest.mark.parametrize(("break_it", "kind"), PASS_MISTAKES)
def test_a_mistake_in_a_pass_comes_out_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, break_it: Break, kind: type[Exception]
) -> None:
    sch = _scale()
    break_it(monkeypatch)
    for use in (tlx.lower, tlx.build):
        with pytest.raises(kind) as error:
            use(sch)
        assert not isinstance(error.value, LayoutExtError)


@pytest.mark.parametrize("target", ["foo", 3, {"kind": "nope"}])
def test_an_unknown_target_is_one_sentence(target: object) -> None:
    with pytest.raises(tlx.TargetError, match="TVM knows no target"):
        tlx.build(_scale(), target=target)  # type: ignore[arg-type]


def test_only_cuda_has_device_functions_here() -> None:
    with pytest.raises(tlx.TargetError, match="CUDA target, not of llvm"):
        tlx.device_program(_scale(), target="llvm")


@pytest.mark.parametrize("source", [3, "main", None, object()])
def test_refuses_what_is_not_a_program(source: object) -> None:
    with pytest.raises(tlx.ScheduleError, match="expected a schedule, a PrimFunc, an IRModule or"):
        tlx.lower(source)


def test_refuses_arguments_for_a_program_that_has_its_own() -> None:
    with pytest.raises(tlx.ScheduleError, match="carries its own arguments"):
        tlx.lower(_scale(), [te.placeholder((1,))])


def _with_versions(stages: int, resident: int) -> tvm.tirx.PrimFunc:
    """A kernel of ``stages`` versions of 8,192 floats, S, beside as many floats in R as told."""
    last = resident - 1
    fill = loop("for i in range(256)", copy("S", "A[k, i * 32 + t]", stages, at="i * 32 + t"))
    other = copy("R", "A[0, t]", 0, at="i * 32 + t")
    reads = f"B[t], S[8191 - t], R[{last} - t]"
    use = block("use", reads, "B[t]", f"B[t] = S[8191 - t] * R[{last} - t]")
    return program(
        "A: T.Buffer((4, 8192), 'float32'), B: T.Buffer((32,), 'float32')",
        [
            "S = T.sblock_alloc_buffer((8192,), scope='shared.dyn')",
            f"R = T.sblock_alloc_buffer(({resident},), scope='shared.dyn')",
            loop(f"for i in range({resident // 32})", other),
            loop("for k in range(4)", fill, use),
        ],
        (),
    )


def test_a_kernel_that_is_too_large_names_its_buffers_after_merging() -> None:
    """Dynamic shared memory is one buffer then, whose name says nothing."""
    func = _with_versions(6, 16384)
    with pytest.raises(tlx.TargetError, match="needs 262,144 bytes") as said:
        tlx.build(func, target="cuda")
    assert "S 196,608" in str(said.value)
    assert "R 65,536" in str(said.value)
    assert str(said.value).endswith("may have 232,448; num_stages=5 is the largest that fits.")
    with tlx.decisions.collect() as made, pytest.raises(tlx.TargetError):
        tlx.build(func, target="cuda")
    assert [d.text[:17] for d in made if d.record is not None] == ["6 buffer versions"]
    with pytest.raises(tlx.TargetError, match=r"may have 232,448\.$"):
        tlx.build(tlx.lower(func, target="cuda"), target="cuda")


def test_where_no_number_of_stages_fits_none_is_named() -> None:
    """60,000 and 4 x 8,192 floats."""
    func = _with_versions(4, 60000)
    with pytest.raises(tlx.TargetError, match=r"may have 232,448\.$"):
        tlx.build(func, target="cuda")


def test_a_checked_compilation_gives_what_a_check_and_a_compilation_give() -> None:
    target = tlx.cuda_target("sm_90a")
    lowered = tlx.lower(_whole_input_shared(64), target=target)
    executable, size = compile_checked(lowered, target)
    plain = compile_lowered(lowered, target)
    assert size == check_fits(lowered, target) == 64 * 32 * 4
    host, other = (one.mod.inspect_source("ll") for one in (executable, plain))
    assert host == other
    kernels, others = (one.mod.imports[0].inspect_source() for one in (executable, plain))
    assert kernels == others
