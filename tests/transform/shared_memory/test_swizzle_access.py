"""Every way to access a swizzled buffer follows it, or is refused with its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import assume, given
from hypothesis import strategies as st
from tvm import s_tir
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tests.programs.swizzles import by_address, data, gemm, operand, transpose
from tests.sampling import pairs
from tvm_layout_ext.analysis.bank_conflict import bank_conflicts
from tvm_layout_ext.build import device_program
from tvm_layout_ext.errors import LayoutError

TARGET = {
    "kind": "cuda",
    "arch": "sm_90a",
    "max_shared_memory_per_block": 232448,
    "max_threads_per_block": 1024,
}


@pytest.mark.matrix
@pairs(
    mode=["auto", "xor", "pad", 64],
    num_stages=[1, 2, 3],
    transposed=[True, False],
    tile_k=[32, 64],
    scope=["shared", "shared.dyn"],
)
def test_matrix_instructions_follow(
    mode: Any, num_stages: int, transposed: bool, tile_k: int, scope: str
) -> None:
    if scope == "shared" and num_stages == 3 and tile_k == 64:
        pytest.skip("more than 48 KiB")
    a, b = (data((128, 128), "float16", seed) for seed in (0, 1))
    sch = gemm(
        {"A": mode, "B": mode},
        tile_k=tile_k,
        transposed=transposed,
        num_stages=num_stages,
        scope=scope,
    )
    expected = a.astype("float32") @ (b.T if transposed else b).astype("float32")
    report = gives(sch, a, b, None, target=tvm.target.Target(TARGET), C=expected)
    if mode == "auto":
        assert report.bank_conflicts == 0
    kernels = device_program(sch.mod, target=tvm.target.Target(TARGET)).kernels.values()
    counted = {
        (c.buffer, c.kind, _a_request(c.kind, c)) for k in kernels for c in bank_conflicts(k)
    }
    assert counted == {
        (x.buffer, x.kind, _a_request(x.kind, x)) for x in report.accesses if x.scope == scope
    }


def _a_request(kind: str, counts: Any) -> float | None:
    """Wavefronts a request; those of asynchronous copies depend on global addresses, too."""
    return None if kind == "cp.async" else counts.wavefronts / counts.requests


def _registers() -> Any:
    return T.sblock_alloc_buffer((4,), "uint32", scope="local")


def _ldmatrix(tile: Any, lane: Any) -> None:
    name = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    r = _registers()
    T.evaluate(T.ptx[name](r[0], r[1], r[2], r[3], T.address_of(tile[lane, 8])))


def _stmatrix(tile: Any, lane: Any) -> None:
    name = "stmatrix.sync.aligned.m8n8.x4.shared.b16"
    r = _registers()
    T.evaluate(T.ptx[name](T.address_of(tile[lane, 8]), r[0], r[1], r[2], r[3]))


def _legacy(tile: Any, lane: Any) -> None:
    r = T.sblock_alloc_buffer((8,), "float16", scope="local")
    T.evaluate(
        T.ptx_legacy.ldmatrix(
            False, 4, ".b16", r.data, 0, T.address_of(tile[0, 8]), lane * 64, dtype="float16"
        )
    )


def _through_access_pointer(tile: Any, lane: Any) -> None:
    name = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    r = _registers()
    pointer = tile.access_ptr("r", offset=lane * 64 + 8)
    T.evaluate(T.ptx[name](r[0], r[1], r[2], r[3], pointer))


def swizzled_addresses(mod: Any) -> str:
    """The part of the lowered program after the last store, on one line."""
    return " ".join(tlx.lower(mod).script().split())


@pytest.mark.parametrize("use", [_ldmatrix, _stmatrix, _legacy, _through_access_pointer])
def test_addresses_of_elements_follow(use: Callable[[Any, Any], None]) -> None:
    """Row l, column 8 of 64 halves goes to l * 64 + ((1 ^ l % 8) * 8)."""
    sch = by_address(use, "xor(8, 1, 8)")
    found = re.findall(r"matrix\(.*?\)\)?", swizzled_addresses(sch))
    lanes = np.arange(32)
    expected = lanes * 64 + ((1 ^ lanes % 8) * 8)
    assert any(_evaluates_to(tlx.lower(sch), expected) for _ in found), found


def _evaluates_to(mod: Any, expected: np.ndarray) -> bool:
    from tvm_layout_ext.analysis.accesses import read_shared_accesses
    from tvm_layout_ext.analysis.bank_requests import read_requests

    for func in mod.functions.values():
        for access in read_shared_accesses(func):
            if access.kind in ("ldmatrix", "stmatrix"):
                requests = read_requests(access)
                assert requests is not None
                return bool((requests.indices[-1][0, :, 0] == expected).all())
    return False


def _unknown_call(tile: Any, lane: Any) -> None:
    T.evaluate(T.call_extern("int32", "use", T.address_of(tile[lane, 0])))


def _odd_address(tile: Any, lane: Any) -> None:
    name = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    r = _registers()
    T.evaluate(T.ptx[name](r[0], r[1], r[2], r[3], T.address_of(tile[lane, 4])))


def _view(tile: Any, lane: Any) -> None:
    other = T.decl_buffer((2048,), "float16", data=tile.data, scope="shared")
    T.evaluate(T.call_extern("int32", "use", other[lane]))


def _access_pointer(tile: Any, lane: Any) -> None:
    T.evaluate(T.call_extern("int32", "use", tile.access_ptr("r"), lane))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (_unknown_call, "accessed through T.address_of"),
        (_odd_address, "its column is not known to be a multiple of 8"),
        (_view, "accessed through"),
        (_access_pointer, "accessed through T.tvm_access_ptr"),
    ],
)
def test_an_access_that_is_not_understood_is_refused(
    use: Callable[[Any, Any], None], message: str
) -> None:
    with pytest.raises(LayoutError, match=message) as error:
        tlx.lower(by_address(use, "xor"))
    assert "Buffer S" in str(error.value)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("xor(1, 1, 8)", "16-byte vectors of store of S"),
        ("xor(4, 1, 8)", "16-byte vectors of store of S"),
        ("pad(32, 1)", "16-byte vectors of store of S"),
        ("xor(8, 1, 32)", "Rows of 32 elements hold 4 vectors of 8"),
        (128, "128-byte swizzle needs 8 rows or more of 128 bytes"),
    ],
)
def test_what_does_not_suit_the_tile_is_refused(mode: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=re.escape(message)):
        tlx.lower(operand(mode))


def test_padding_and_swizzle_together_are_refused() -> None:
    sch = operand("xor")
    sch.storage_align("S", 0, 0, 32, 8)
    with pytest.raises(LayoutError, match="either padded or swizzled"):
        tlx.lower(sch)


@st.composite
def programs(draw: Any) -> tuple[s_tir.Schedule, str]:
    sizes = {"int8": 1, "float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
    dtype = draw(st.sampled_from(list(sizes)))
    size = sizes[dtype]
    columns = draw(st.sampled_from([32, 64, 128, 512])) // min(size, 4)
    rows = draw(st.sampled_from([8, 32, 64] if columns < 128 else [8]))
    vector = draw(st.sampled_from([v for v in (1, 2, 4, 8, 16) if v * size <= 16 and v <= columns]))
    assume(rows * columns // vector >= 32)
    modes = ["auto", "pad", "xor", 32, (vector, 1, 2), (vector, 2, 4)]
    mode = draw(st.sampled_from(modes))
    sch = transpose(
        mode,
        dtype,
        rows=rows,
        columns=columns,
        vector=vector,
        tiles=3,
        num_stages=draw(st.integers(1, 2)),
        scope=draw(st.sampled_from(["shared", "shared.dyn"])),
    )
    return sch, dtype


def refusal_of(sch: s_tir.Schedule) -> str:
    try:
        tlx.lower(sch)
    except LayoutError as error:
        return str(error)
    return ""


@given(programs())
def test_random_programs_keep_their_results(program: tuple[s_tir.Schedule, str]) -> None:
    sch, dtype = program
    refused = refusal_of(sch)
    if refused:
        # A swizzle that tears vectors, or rows too short or too few for it.
        assert re.search("would fall|too few|needs 8 rows", refused)
        return
    a = data(tuple(map(int, sch.mod["main"].params[0].shape)), dtype)
    gives(sch, a, None, B=a.T)
