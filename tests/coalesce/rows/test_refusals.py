"""Each refusal names the blocks and what is legal, and leaves the schedule as it was."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir, te
from tvm.script import from_source

import tvm_layout_ext as tlx
from tvm_layout_ext import ScheduleError

_SUM = """for i, k in T.grid(8, 64):
    with T.sblock("S"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            S[vi] = {start}
        S[vi] = {body}
"""
_SCALE = """for i, k in T.grid({rows}, {length}):
    with T.sblock("Y"):
        vi, vk = T.axis.remap("SS", [i, k])
        Y[vi, vk] = {value}
"""
_BETWEEN = """for i in range(8):
    with T.sblock("other"):
        vi = T.axis.spatial(8, i)
        Z[vi] = {value}
"""


def program(*nests: str, **holes: Any) -> Any:
    """A function of some nests; ``holes`` fill them."""
    filled = {"start": "0.0", "body": "S[vi] + X[vi, vk]", "rows": 8, "length": 64}
    text = "".join(nests).format(**(filled | {"value": "X[vi, vk] / S[vi]"} | holes))
    buffers = "X: T.Buffer((8, 64)), Y: T.Buffer((8, 64)), Z: T.Buffer((8,)), S: T.Buffer((8,))"
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return from_source(f"@T.prim_func(s_tir=True)\ndef main({buffers}):\n{lines}")


CASES: dict[str, tuple[Any, list[str], str]] = {
    "no reduction": (program(_SUM, _SCALE), ["Y"], "needs a reduction along the rows; Y reduce"),
    "another length": (
        program(_SUM, _SCALE, length=32),
        ["S", "Y"],
        "here 8 of 64 elements; block Y goes over 8 x 32.",
    ),
    "other rows": (program(_SUM, _SCALE, rows=4), ["S", "Y"], "block Y goes over 4 x 64."),
    "a block between": (
        program(_SUM, _BETWEEN, _SCALE, value="S[vi]"),
        ["S", "Y"],
        "puts S to Y into one kernel, but other stands between them.",
    ),
    "another element": (
        program(_SUM, _SCALE, value="X[vi, vk] / S[7 - vi]"),
        ["S", "Y"],
        r"Block Y reads S\[7 - row0\], but its threads have only S\[row0\].",
    ),
    "in place": (
        program(_SUM, _SCALE, value="Y[vi, vk] / S[vi]"),
        ["S", "Y"],
        "Block Y reads Y before it is written",
    ),
    "a start": (program(_SUM, start="1.0"), ["S"], "Block S starts S from"),
    "no reducer": (
        program(_SUM, body="S[vi] * T.float32(2) + X[vi, vk]"),
        ["S"],
        "In the body of block S is no reducer",
    ),
    "a condition": (
        program(_SUM.replace("        with T.init", "        T.where(k < 9)\n        with T.init")),
        ["S"],
        "Block S runs only where k < 9 holds",
    ),
    "an if": (
        program(_SUM, _SCALE.replace("        Y[", "        if vk > 3:\n            Y[")),
        ["S", "Y"],
        "Block Y is opaque",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_chain_is_refused(name: str) -> None:
    func, blocks, sentence = CASES[name]
    sch = s_tir.Schedule(func)
    before = sch.mod
    with pytest.raises(ScheduleError, match=sentence) as caught:
        sch.fuse_rows(blocks)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert sch.mod.same_as(before)


def test_bound_blocks_are_refused() -> None:
    sch = s_tir.Schedule(program(_SUM, _SCALE))
    sch.bind(sch.get_loops("S")[0], "blockIdx.x")
    with pytest.raises(ScheduleError, match=r"not bound to threads or vectorized, .*; S is not"):
        sch.fuse_rows(["S", "Y"])


def test_blocks_that_ask_for_more_are_refused() -> None:
    sch = s_tir.Schedule(program(_SUM, _SCALE))
    sch.eviction_policy("Y", "evict_last")
    with pytest.raises(ScheduleError, match=r"Y asks for layout_ext.eviction_policy, too"):
        sch.fuse_rows(["S", "Y"])


def test_a_chain_that_changes_later_is_refused_when_it_is_lowered() -> None:
    sch = s_tir.Schedule(program(_SUM, _SCALE))
    sch.fuse_rows(["S", "Y"])
    sch.bind(sch.get_loops("S")[0], "blockIdx.x")
    with pytest.raises(ScheduleError, match="; S is not"):
        tlx.lower(sch)


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"lanes": 12}, "needs lanes to be one of 0, 1, 2, 4, .*, not 12"),
        ({"num_threads": 32}, "needs num_threads to be one of 0, 64, .*, not 32"),
        ({"vector_bytes": 3}, "needs vector_bytes to be one of 1, 2, .*, not 3"),
        ({"keep": "cache"}, "needs keep to be one of auto, registers, .*, not 'cache'"),
        ({"lanes": 128, "num_threads": 64}, "finds no plan for 64 elements with lanes=128"),
    ],
)
def test_wishes_are_checked(wishes: dict[str, Any], sentence: str) -> None:
    sch = s_tir.Schedule(program(_SUM, _SCALE))
    with pytest.raises(ScheduleError, match=sentence):
        sch.fuse_rows(["S", "Y"], **wishes)


def test_stages_that_were_split_are_refused() -> None:
    x = te.placeholder((8, 64), name="X")
    y = te.compute((8, 64), lambda i, j: x[i, j] * 2.0, name="Y")
    s = tlx.create_schedule(y.op)
    s[y].split(y.op.axis[0], factor=4)
    with pytest.raises(ScheduleError, match="nothing was done to yet; Y was split"):
        s.fuse_rows([y])
