"""explain: golden figures of small transposes, padding, symbolic sizes, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm

import tvm_layout_ext as tlx
from tests.programs.swizzles import operand
from tvm_layout_ext import te
from tvm_layout_ext.cubin import COMPILER, compiling_by
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.report.explain import AccessRow, Explanation, draw_arguments, explain
from tvm_layout_ext.report.load import load_file
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.space.task import make_task


def make_transpose(
    offset: int | None = None, *, side: int = 64, line: str = ""
) -> tuple[te.Schedule, list[Any]]:
    """A 32x32 tile a block of 32 by 8 threads, stored row by row, read column by column.

    ``line`` is put at the end of its schedule.
    """
    A = te.placeholder((side, side), "float32", name="A")
    B = te.compute((side, side), lambda j, i: A[i, j], name="B")
    s = te.create_schedule(B.op)
    tile = s.cache_read(A, "shared", [B])
    jo, io, ji, ii = s[B].tile(*B.op.axis, 32, 32)
    s[B].bind(jo, te.thread_axis("blockIdx.y"))
    s[B].bind(io, te.thread_axis("blockIdx.x"))
    bind_tile(s[B], ji, ii)
    s[tile].compute_at(s[B], io)
    bind_tile(s[tile], *tile.op.axis)
    if offset is not None:
        s[tile].storage_align(tile.op.axis[0], 32, offset)
    exec(line, {"s": s})
    return s, [A, B]


def bind_tile(stage: te.Stage, y: Any, x: Any) -> None:
    _, ty = stage.split(y, factor=8)
    stage.bind(ty, te.thread_axis("threadIdx.y"))
    stage.bind(x, te.thread_axis("threadIdx.x"))


def find(found: Explanation, scope: str, kind: str) -> AccessRow:
    (row,) = [row for row in found.rows if (row.scope, row.kind) == (scope, kind)]
    return row


@pytest.mark.parametrize(("offset", "degree", "stride"), [(0, 32, 32), (1, 1, 33), (2, 2, 34)])
def test_column_read_of_a_tile_conflicts_by_its_row_stride(
    offset: int, degree: int, stride: int
) -> None:
    found = explain(*make_transpose(offset))
    assert find(found, "shared", "load").conflict_degree == degree
    assert find(found, "shared", "store").conflict_degree == 1
    (buffer,) = found.shared
    assert (buffer.name, buffer.shape, buffer.stride) == ("A_shared", (32, 32), stride)
    assert (buffer.padding, buffer.bytes) == (stride - 32, stride * 32 * 4)
    assert found.shared_bytes == buffer.bytes
    assert (found.bank_conflicts == 0) == (degree == 1)


@pytest.mark.parametrize(("length", "told"), [(64, "2 of 16"), (66, "2 of 4"), (33, "2")])
def test_accesses_narrower_than_rows_allow_are_told(length: int, told: str) -> None:
    a = te.placeholder((16, length), "float16", name="A")
    b = te.compute((16, length), lambda i, j: a[i, j] + a[i, j], name="B")
    s = te.create_schedule(b.op)
    block, thread = s[b].split(s[b].fuse(*b.op.axis), factor=32)
    s[b].bind(block, te.thread_axis("blockIdx.x"))
    s[b].bind(thread, te.thread_axis("threadIdx.x"))
    found = explain(s, [a, b])
    assert {row.cells()[3] for row in found.rows} == {told}


def test_lowered_module_is_explained_without_strides() -> None:
    s, args = make_transpose(1)
    found = explain(tlx.lower(s, args))
    assert find(found, "shared", "load").conflict_degree == 1
    assert [(b.stride, b.bytes) for b in found.shared] == [(None, 33 * 32 * 4)]


def symbolic() -> tvm.tirx.PrimFunc:
    n = te.var("n")
    A = te.placeholder((n, 4 * n), "float16", name="A")
    B = te.compute(A.shape, lambda i, j: A[i, j] * 2, name="B")
    return te.create_prim_func([A, B])


def test_symbolic_sizes_take_the_given_values() -> None:
    mod = tvm.IRModule.from_expr(symbolic())
    arrays = draw_arguments(mod, {"n": 6})
    assert [(a.shape, a.dtype.name) for a in arrays] == [((6, 24), "float16")] * 2
    with pytest.raises(ScheduleError, match="Buffer A has the symbolic size n; give values"):
        draw_arguments(mod, {})
    both = tvm.IRModule({"f": symbolic(), "g": symbolic()})
    with pytest.raises(ScheduleError, match="one function; this one has f, g"):
        draw_arguments(both, {})


def test_symbolic_kernel_is_explained_at_the_given_size() -> None:
    n = te.var("n")
    A = te.placeholder((n, 256), "float16", name="A")
    B = te.compute(A.shape, lambda i, j: A[i, j] * 2, name="B")
    s = te.create_schedule(B.op)
    s[B].bind(B.op.axis[0], te.thread_axis("blockIdx.x"))
    outer, vector = s[B].split(B.op.axis[1], factor=8)
    s[B].bind(outer, te.thread_axis("threadIdx.x"))
    s[B].vectorize(vector)
    found = explain(s, [A, B], values={"n": 3}, grid_sample=None)
    load = find(found, "global", "load")
    assert (load.vector_bytes, load.requests, load.sectors_per_request) == (16, 3, 16)
    with pytest.raises(ScheduleError, match="symbolic size n"):
        explain(s, [A, B])


def test_decisions_of_the_passes_are_listed() -> None:
    A = te.placeholder((256, 32), "float32", name="A")
    k = te.reduce_axis((0, 256), name="k")
    B = te.compute((32,), lambda i: te.sum(A[k, i], axis=k), name="B")
    s = te.create_schedule(B.op)
    tile = s.cache_read(A, "shared", [B])
    s[B].bind(B.op.axis[0], te.thread_axis("threadIdx.x"))
    outer, _ = s[B].split(B.op.reduce_axis[0], factor=8)
    s[tile].compute_at(s[B], outer)
    s[tile].bind(tile.op.axis[1], te.thread_axis("threadIdx.x"))
    s[tile].double_buffer(num_stages=2)
    found = explain(s, [A, B])
    assert any("A_shared" in decision.subject for decision in found.decisions)
    assert str(found.decisions[0]) in found.text()


def test_an_epilogue_was_named_after_the_operand_whose_place_it_takes() -> None:
    """C of float16 is staged at the place of A, as TVM plans it, and was shown as A."""
    task = make_task("gemm", (64, 64, 64), "float16")
    config = task.operator.default_config() | {"tile_m": 64, "tile_n": 64}
    rows = explain(task.module(config), target=cuda_target("sm_90a")).rows
    shared = {(row.buffer, row.kind, row.block) for row in rows if row.scope != "global"}
    assert shared == {
        ("A_reindex_shared.dyn", "cp.async", "A_reindex_reindex"),
        ("B_reindex_shared.dyn", "cp.async", "B_reindex_reindex"),
        ("A_reindex_shared.dyn", "ldmatrix", None),
        ("B_reindex_shared.dyn", "ldmatrix", None),
        ("C_shared.dyn", "store", "C"),
        ("C_shared.dyn", "load", "C_shared.dyn"),
    }


_FILE = """
from tvm_layout_ext import te
A = te.placeholder((64,), name="A")
B = te.compute((64,), lambda i: A[i] + 1, name="B")
s = te.create_schedule(B.op)
s[B].bind(B.op.axis[0], te.thread_axis("threadIdx.x"))
"""


@pytest.mark.parametrize("args", ["", "args = [B, A]", "args = 3"])
def test_file_with_a_te_schedule(
    tmp_path: Path, args: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its parameters are inputs and then outputs, if no list says otherwise."""
    (tmp_path / "kernel.py").write_text(f"{_FILE}print('told')\n{args}\n")
    source, given = load_file(tmp_path / "kernel.py")
    assert capsys.readouterr() == ("", "told\n")
    found = explain(source, given)
    assert [(row.buffer, row.requests) for row in found.rows] == [("A", 2), ("B", 2)]
    names = [param.name for param in found.question.mod["main"].params]
    assert names == (["B", "A"] if "[" in args else ["A", "B"])


def test_file_of_printed_script(tmp_path: Path) -> None:
    s, args = make_transpose(1)
    (tmp_path / "kernel.py").write_text(s.to_module(args).script())
    source, none = load_file(tmp_path / "kernel.py")
    assert none is None
    assert find(explain(source), "shared", "load").conflict_degree == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines none"),
        (
            _FILE + "t = te.create_schedule(B.op)\nargs = [A, B]",
            r"defines s, t; choose with --name",
        ),
        ("import nothing_of_that_name", "failed with ModuleNotFoundError: No module named"),
        ("def f(:", "failed with SyntaxError"),
        ("@T.prim_func\ndef f(:", "is no TVMScript"),
    ],
)
def test_unusable_file_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "kernel.py").write_text(text)
    with pytest.raises(ScheduleError, match=message) as caught:
        load_file(tmp_path / "kernel.py")
    assert "\n" not in str(caught.value)


def test_name_chooses_among_several(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(_FILE + "t = te.create_schedule(B.op)\nargs = [A, B]\n")
    assert isinstance(load_file(tmp_path / "kernel.py", "t")[0], te.Schedule)
    with pytest.raises(ScheduleError, match="no schedule, function or module u; it has s, t"):
        load_file(tmp_path / "kernel.py", "u")


@pytest.mark.parametrize(("mode", "stride"), [("none", 32), ("pad", 40), ("xor", 32)])
def test_buffers_have_the_rows_that_a_swizzle_gives_them(mode: str, stride: int) -> None:
    (buffer,) = explain(operand(mode)).shared
    assert (buffer.shape, buffer.stride, buffer.padding) == ((128, 32), stride, stride - 32)
    assert buffer.bytes == 128 * stride * 2


def test_cuda_is_written_and_not_compiled() -> None:
    """With a driver TVM's build asks its compiler, without one it does not."""
    stock = tvm.get_global_func("target.build.cuda")

    def asking(mod: tvm.IRModule, target: Any) -> Any:
        tvm.get_global_func(COMPILER)("")
        return stock(mod, target)

    tvm.register_global_func("target.build.cuda", asking, override=True)
    try:
        with compiling_by(lambda _: pytest.fail("The kernel is compiled.")):
            assert "__global__" in explain(*make_transpose()).cuda
    finally:
        tvm.register_global_func("target.build.cuda", stock, override=True)
