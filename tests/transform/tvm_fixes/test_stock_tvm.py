"""What TVM 0.27 gets wrong: a test that fails here says that its pass can go."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_layout_ext as tlx
from tests.coalesce import test_two_writers as writers
from tests.pipeline.corpus import two_warp_buffers
from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed
from tests.programs.products import Product, scheduled, simulated
from tests.transform.tvm_fixes import test_align_offsets as offsets
from tests.transform.tvm_fixes import test_check_thread_reductions as sums
from tests.transform.tvm_fixes import test_check_tile_bounds as tiles
from tests.transform.tvm_fixes import test_check_vectors as vectors
from tests.transform.tvm_fixes import test_endless_arrays as arrays
from tests.transform.tvm_fixes import test_guard_reductions as reductions
from tests.transform.tvm_fixes import test_join_comparisons as comparisons
from tests.transform.tvm_fixes import test_reduce_angles as angles
from tests.transform.tvm_fixes import test_rename_operands as operands
from tests.transform.tvm_fixes import test_scope_binds as binds
from tests.transform.tvm_fixes import test_straighten_indices as indices
from tests.transform.tvm_fixes import test_widen_reductions as bytes_by_words
from tests.transform.tvm_fixes import test_widen_small_buffers as small
from tests.transform.tvm_fixes import test_write_out_powers as powers
from tests.transform.tvm_fixes import test_write_out_sigmoids as sigmoids
from tests.transform.tvm_fixes import test_write_out_starts as starts
from tvm_layout_ext import pipeline, transform
from tvm_layout_ext.ir import ops
from tvm_layout_ext.transform import tvm_fixes

Without = Callable[..., None]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Without:
    """Take passes of ours out of the pipeline."""

    def take_out(*names: str) -> None:
        gone = [getattr(transform, name) for name in names]
        kept = {
            stock: tuple(one for one in ours if one not in gone)
            for stock, ours in pipeline._BEFORE.items()
        }
        monkeypatch.setattr(pipeline, "_BEFORE", kept)

    return take_out


def test_endless_arrays(without: Without) -> None:
    """The least of a symbolic size and of what is used is no constant."""
    without("EndlessArrays", "CheckTileBounds")
    assert "T.min(" in tlx.lower(arrays.cached("local")).script()


def test_align_offsets(without: Without) -> None:
    """A vector that starts at an element offset is loaded element by element."""
    without("AlignOffsets")
    assert "*(float4*)(A" not in cuda_text(offsets.mapped())


def test_check_thread_reductions(without: Without) -> None:
    """Each thread updates the result of all."""
    without("CheckThreadReductions")
    kernel = str(tlx.lower(sums.row_sums()).script())
    assert "threadIdx_x" in kernel
    assert "allreduce" not in kernel


def test_check_tile_bounds(without: Without) -> None:
    """A tile without a bound is given the largest int32 as its extent, and its size wraps."""
    without("CheckTileBounds")
    assert "A_shared = T.alloc_shared((-4,))" in tlx.lower(tiles.cached("shared")).script()


def test_check_vectors(without: Without) -> None:
    """Two truth values move as 4 bytes, and six FP8 as 4."""
    without("CheckVectors")
    assert "ushort2*" in cuda_text(vectors.vectors("bool", 2))
    assert "uint1*" in cuda_text(vectors.vectors("float8_e4m3fn", 6))


def test_expose_pointers(without: Without) -> None:
    """A tile that ``ldmatrix`` still reads by its address shares its bytes with the next one."""
    without("ExposePointers")
    with pytest.raises(AssertionError, match="Mismatched elements"):
        simulated(Product(), scheduled(Product()))


def test_guard_reductions() -> None:
    """The guard of a partial block of rows is dropped."""
    with pytest.raises(tlx.SimulationError, match=r"Out of bounds: .* store at index 33 of B"):
        tlx.simulate(reductions.row_sum(33, 128, annotated=False), np.zeros((33, 128), "float32"))


def test_lower_shared_results(without: Without) -> None:
    """Threads that sum into a buffer which another block writes, too, add as if each were alone."""
    without("LowerSharedResults")
    without("CheckThreadReductions")
    sch = s_tir.Schedule(writers.row_sums)
    for block in ("upper", "lower"):
        sch.auto_coalesce(block)
    assert tlx.simulate(sch, *np.ones((2, 64, 1024), "float32"), None).hazards


def test_lower_warp_memory() -> None:
    """Only the first of two warp buffers is given to the lanes in parts."""
    assert "q_ptr[32]" in cuda_text(two_warp_buffers())


def test_pack_bytes(without: Without) -> None:
    """Sixteen equal bytes are written as an ``int4`` of 16 arguments."""
    without("PackBytes")
    sch = computed((4, 512), lambda a, i, j: a[i, j] + tirx.const(7, "int8"), "int8")
    sch.auto_coalesce("B")
    arguments = re.findall(r"make_int4\(([^;]*)\);", cuda_text(sch))
    assert any(text.count(",") == 15 for text in arguments)


def test_join_comparisons(without: Without) -> None:
    """Comparisons of registers are joined by ``||``, of which nvcc makes branches."""
    without("JoinComparisons")
    text = cuda_text(comparisons.argmax())
    assert [line for line in text.splitlines() if "||" in line and "local" in line]


def test_rename_operands(without: Without) -> None:
    """Of operand B's name the letter A in the first operand's name is replaced, or the like."""
    without("RenameOperands")
    assert "A_reindex_shared_dyn_warp_ptr + 0_reindex" in operands.source("B", "A", "sums")


def test_reversed_indices() -> None:
    """An index that runs backwards is flattened to one that is another number."""
    t = tirx.Var("t", "int32")
    buffer = tirx.decl_buffer((64,), "float32", "A")
    store = tirx.BufferStore(buffer, tirx.const(0, "float32"), [tirx.floormod(36 - t, 32)])
    func = tirx.PrimFunc([buffer], tirx.For(t, 0, 32, tirx.ForKind.SERIAL, store))
    flat = tirx.transform.FlattenBuffer()(tvm.IRModule({"main": func}))["main"]
    assert "% -32" in flat.script()


def test_straighten_indices() -> None:
    """Vectors of fused loops that cross the rows go element by element."""
    sch = indices.fused_copy((2, 3, 4, 33), annotated=False)
    report = tlx.simulate(sch, np.zeros((2, 3, 4, 33), "float32"), None)
    assert report.accesses[0].vector_bytes == 4


def test_type_matrix_loads() -> None:
    """The printer drops the type of ``ldmatrix``'s elements, and the parser takes int8."""
    lowered = tlx.lower(scheduled(Product()).mod)
    assert _loaded(lowered) == {"float16"}
    assert _loaded(tvm.script.from_source(lowered.script())) == {"int8"}


def _loaded(mod: tvm.IRModule) -> set[str]:
    found: list[Any] = []
    tvm_ffi.structural_walk(mod["main"].body, [(tvm.ir.Call, found.append)])
    return {str(call.ty) for call in found if call.op.name == ops.PTX_LEGACY_LDMATRIX}


def test_widen_reductions(without: Without) -> None:
    """Lanes exchange bytes through shared memory, with no barrier between them."""
    without("WidenReductions")
    text = cuda_text(bytes_by_words.along_rows(bytes_by_words.rows("max", "int8", (3, 1000)), 32))
    assert "= __shfl_down_sync" not in text
    assert "__syncwarp" not in text


def test_widen_small_buffers(without: Without) -> None:
    """Shared memory of 32 bits is taken for a register, and has no place beside other buffers."""
    without("WidenSmallBuffers")
    with pytest.raises(tlx.ScheduleError, match="buffer_byte_offsets"):
        tlx.simulate(small.two_small_buffers(), np.zeros((4, 4), "float16"), None)


def test_reduce_angles(without: Without) -> None:
    """Any angle is given to ``cosf``, which is ``__cosf`` by fast math."""
    without("ReduceAngles")
    assert "nearbyint" not in angles.taken_of("cos")


def test_write_out_powers(without: Without) -> None:
    """What may be negative is given to ``powf``, which fast math has no powers of."""
    without("WriteOutPowers")
    assert powers.calls(2) == (True, False)


def test_write_out_sigmoids(without: Without) -> None:
    """Eight ones of float32 are written as four words of eight arguments."""
    without("WriteOutSigmoids")
    arguments = re.findall(r"make_ulonglong4\(([^;]*)\);", cuda_text(sigmoids.sigmoids()))
    assert any(text.count(",") == 7 for text in arguments)


def test_scope_binds(without: Without) -> None:
    """Several dynamic buffers, and a value bound from memory that nothing is around."""
    without("ScopeBinds")
    with pytest.raises(RuntimeError, match="Load memory in places other than store"):
        cuda_text(binds.two_sums())


def test_write_out_starts(without: Without) -> None:
    """A vector that starts where the host has computed is moved by 8 indices of 64 bits."""
    without("WriteOutStarts")
    with pytest.raises(tvm.error.InternalError, match="type_name"):
        cuda_text(starts.mapped())


def test_every_repair_is_here() -> None:
    """``own_lane`` is part of ``lower_warp_memory``."""
    files = {path.stem for path in Path(tvm_fixes.__file__).parent.rglob("*.py")}
    assert files - {"__init__", "own_lane"} == {
        name.removeprefix("test_") for name in globals() if name.startswith("test_")
    } - {"every_repair_is_here"}
