"""What the walker says of the loops, names, conditions and blocks around a statement."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from tvm_layout_ext.ir import walk


@T.prim_func(s_tir=True)
def summed(A: T.Buffer((64, 8), "float32"), B: T.Buffer((64,), "float32"), n: T.int32):
    for i in T.thread_binding(64, thread="threadIdx.x"):
        for k in T.serial(8):
            with T.sblock("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                T.where(i < n)
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vk]


def test_stores_have_their_loops_names_conditions_and_blocks() -> None:
    found = [one for one in walk.walk(summed.body) if isinstance(one[0], tirx.BufferStore)]
    (_, first), (_, then) = found
    assert (first.in_init, then.in_init) == (True, False)
    assert [(loop.kind, loop.count) for loop in then.loops] == [("threadIdx.x", 64), ("serial", 8)]
    assert [str(var.name) for var, _ in then.lets] == ["vi", "vk"]
    assert [str(condition) for condition in then.conditions] == ["i < n"]
    assert (then.block, then.threads) == ("B", {"threadIdx.x": 64})


def test_names_are_known_after_their_statement() -> None:
    name, buffer = tirx.Var("x", "int32"), tirx.decl_buffer((8,), "int32", "B", layout=None)
    store = tirx.BufferStore(buffer, name, [name])
    bind = tirx.Bind(name, tirx.IntImm("int32", 3))
    around = [len(context.lets) for _, context in walk.walk(tirx.SeqStmt([bind, store]))]
    assert around == [0, 0, 1]


def test_kernels_are_launched_by_attributes_and_by_loops() -> None:
    @T.prim_func(s_tir=True)
    def by_loops(A: T.Buffer((4,), "float32")) -> None:
        for i in T.thread_binding(4, thread="threadIdx.x"):
            A[i] = T.float32(0)

    @T.prim_func(s_tir=True)
    def by_attributes(A: T.Buffer((4,), "float32")) -> None:
        with T.launch_thread("threadIdx.x", 4) as i:
            A[i] = T.float32(0)

    @T.prim_func(s_tir=True)
    def on_the_host(A: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            A[i] = T.float32(0)

    found = [walk.launches(one.body) for one in (by_loops, by_attributes, on_the_host)]
    assert found == [True, True, False]
