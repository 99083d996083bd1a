"""LowerAsyncCopy: which copies become cp.async, of which size, and why others do not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.pipelines import LANES, block, loop, program
from tests.programs.running import gives
from tvm_layout_ext import decisions

COPY = re.compile(r'(\d+), "async", "(c[ag])"')


def lowered(
    value: str,
    *,
    wide: int = 4,
    dtype: str = "float32",
    source: str = "float32",
    guard: str = "",
    demand: bool | str = "auto",
    align: int = 16,
    arch: str = "sm_80",
    extra: str = "",
) -> tuple[str, str]:
    """A loop that copies ``wide`` elements a thread as ``value`` says: its text, and the reason."""
    to = f"S[t * {wide} + v]"
    store = block("S", "A[k, 0:4096]", to, f"{to} = {value}")
    if guard:
        store = loop(f"if {guard}", store)
    vector = loop(f"for v in T.vectorized({wide})", store)
    use = block(
        "use", f"B[t], S[0:{LANES * wide}]", "B[t]", "B[t] = B[t] + T.Cast('float32', S[t])"
    )
    head = f"a: T.handle, B: T.Buffer(({LANES},), 'float32'), n: T.int32"
    body = [
        f"S = T.sblock_alloc_buffer(({LANES * wide},), '{dtype}', scope='shared')",
        loop("for k in range(8)", vector, use),
    ]
    match = f"A = T.match_buffer(a, (8, 4096), '{source}', align={align}{extra})"
    func = program(head, body, (), before=match)
    sch = s_tir.Schedule(func)
    sch.double_buffer("S", 2, async_copy=demand)
    with decisions.collect() as made:
        text = tlx.lower(sch, target=tlx.cuda_target(arch)).script()
    why = [d.text for d in made if d.maker == "LowerAsyncCopy" and d.refused]
    return text, why[0] if why else ""


@pytest.mark.parametrize(
    ("wide", "dtype", "size", "cache"),
    [
        (1, "float32", 4, "ca"),
        (2, "float32", 8, "ca"),
        (4, "float32", 16, "cg"),
        (2, "float16", 4, "ca"),
        (8, "float16", 16, "cg"),
        (16, "int8", 16, "cg"),
        (4, "int8", 4, "ca"),
    ],
)
def test_sizes(wide: int, dtype: str, size: int, cache: str) -> None:
    value = f"A[k, t * {wide} + v]"
    text, why = lowered(value, wide=wide, dtype=dtype, source=dtype)
    assert why == ""
    assert set(COPY.findall(text)) == {(str(size), cache)}


REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "casts": (
        {"value": "T.Cast('float32', A[k, t * 4 + v])", "source": "float16"},
        "it computes on the way",
    ),
    "computes": ({"value": "A[k, t * 4 + v] + T.float32(1)"}, "it computes on the way"),
    "too narrow": (
        {"value": "A[k, t * 1 + v]", "wide": 1, "dtype": "float16", "source": "float16"},
        "a thread copies 2 bytes at a time, and cp.async 4, 8 or 16",
    ),
    "gathers": ({"value": "A[k, (t * 4 + v) * 2]"}, "its elements do not lie side by side in A"),
    "misaligned": (
        {"value": "A[k, t * 4 + v + 1]"},
        "it is not known to start at a multiple of 16 bytes in A",
    ),
    "fills with one": (
        {"value": "T.if_then_else(t * 4 + v < n, A[k, t * 4 + v], T.float32(1))"},
        "out of range it stores",
    ),
    "guard cuts the vector": (
        {"value": "A[k, t * 4 + v]", "guard": "t * 4 + v < 98"},
        "a guard cuts its vectors",
    ),
    "every other element": (
        {"value": "T.if_then_else((t * 4 + v) % 2 == 0, A[k, t * 4 + v], T.float32(0))"},
        "does not say how many elements are in range",
    ),
    "bound loaded under a bound": (
        {
            "value": "T.if_then_else(k < n, T.if_then_else("
            "t * 4 + v < T.Cast('int32', A[k, 0]), A[k, t * 4 + v], T.float32(0)), T.float32(0))"
        },
        "is loaded under another one",
    ),
    "bound of another step": (
        {"value": "T.if_then_else((t * 4 + v) * 2 < n, A[k, t * 4 + v], T.float32(0))"},
        "does not end at one element",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name: str) -> None:
    """The report says why; async_copy=True refuses for that reason; False does not even ask."""
    arguments, reason = REASONS[name]
    text, why = lowered(**arguments)
    assert reason in why
    assert not COPY.findall(text)
    assert "wait_group" not in text
    with pytest.raises(tlx.ScheduleError, match="The copy into S cannot be asynchronous") as said:
        lowered(**arguments, demand=True)
    assert reason in str(said.value)
    assert lowered(**arguments, demand=False)[1] == ""


def test_refuses_versions_of_a_buffer_whose_size_is_no_constant() -> None:
    """A guard n makes TVM shrink the buffer to n elements."""
    with pytest.raises(tlx.ScheduleError, match=r"Buffer S in shared .* a constant size"):
        lowered("A[k, t * 4 + v]", guard="t * 4 + v < n")


def test_true_is_refused_before_sm_80() -> None:
    with pytest.raises(tlx.ScheduleError, match="Block S asks for asynchronous copies, which need"):
        lowered("A[k, t * 4 + v]", demand=True, arch="sm_75")
    assert "async" not in lowered("A[k, t * 4 + v]", arch="sm_75")[0]


@pytest.mark.parametrize("length", [-(2**32) + 7, -1, 0, 50, 128, 2**31, 2**32, 2**32 + 5, 2**62])
@pytest.mark.parametrize("wide", [1, 4])
def test_a_bound_of_64_bits_is_not_narrowed_before_it_is_cut(length: int, wide: int) -> None:
    """2^31 as int32 would be negative, and all that is copied zero."""
    where = f"k * {32 * wide} + t * {wide} + v"
    value = f"T.if_then_else(T.Cast('int64', {where}) < n, A[{where}], T.float32(0))"
    to = f"S[t * {wide} + v]"
    store = loop(f"for v in T.vectorized({wide})", block("S", "A[0:512]", to, f"{to} = {value}"))
    read = f"S[{32 * wide - 1} - t]"
    use = block("use", f"B[t], {read}", "B[t]", f"B[t] = B[t] + {read}")
    alloc = f"S = T.sblock_alloc_buffer(({32 * wide},), scope='shared')"
    head = "A: T.Buffer((512,), 'float32'), B: T.Buffer((32,), 'float32'), n: T.int64"
    sch = s_tir.Schedule(program(head, [alloc, loop("for k in range(4)", store, use)], ()))
    sch.double_buffer("S", 2, async_copy=True)
    a = np.random.default_rng(0).integers(-8, 8, 512).astype("float32")
    rows = np.where(np.arange(512) < length, a, 0)[: 128 * wide].reshape(4, 32 * wide)
    gives(sch, a, np.zeros(32, "float32"), length, B=rows.sum(0)[::-1][:32])


def test_an_index_that_the_condition_guards_is_not_loaded_out_of_range() -> None:
    """The instruction reads nothing there, but its address is computed all the same."""
    value = "T.if_then_else(k * 32 + t < 100, A[I[k * 32 + t]], T.float32(0))"
    store = block("S", "A[0:512]", "S[t]", f"S[t] = {value}")
    use = block("use", "B[t], S[31 - t]", "B[t]", "B[t] = B[t] + S[31 - t]")
    vectors = "A: T.Buffer((512,), 'float32'), B: T.Buffer((32,), 'float32')"
    head = f"{vectors}, I: T.Buffer((100,), 'int32')"
    sch = s_tir.Schedule(program(head, [loop("for k in range(4)", store, use)]))
    sch.double_buffer("S", 2, async_copy=True)
    rng = np.random.default_rng(0)
    a, index = rng.integers(-8, 8, 512).astype("float32"), rng.integers(0, 512, 100).astype("int32")
    rows = np.append(a[index], np.zeros(28)).reshape(4, 32)
    gives(sch, a, np.zeros(32, "float32"), index, B=rows.sum(0)[::-1])
