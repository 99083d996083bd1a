"""Rules ask for the same function: what one does to its schedule is not seen by the next."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from tvm_layout_ext.models.products import inlined


@T.prim_func(s_tir=True)
def doubled_root(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")) -> None:
    D = T.sblock_alloc_buffer((8, 8))
    for i, j in T.grid(8, 8):
        with T.sblock("D"):
            x, y = T.axis.remap("SS", [i, j])
            D[x, y] = A[x, y] * T.float32(2)
    for i, j in T.grid(8, 8):
        with T.sblock("B"):
            x, y = T.axis.remap("SS", [i, j])
            B[x, y] = T.sqrt(D[x, y])


@T.prim_func(s_tir=True)
def product(
    A: T.Buffer((8, 4), "float32"), B: T.Buffer((8, 4), "float32"), C: T.Buffer((8, 8), "float32")
) -> None:
    for i, j, k in T.grid(8, 8, 4):
        with T.sblock("C"):
            x, y, z = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[x, y] = T.float32(0)
            C[x, y] = C[x, y] + A[x, z] * B[y, z]


def names(sch: object) -> list[str]:
    return [str(sch.get(one).name_hint) for one in sch.get_child_blocks(sch.get_sblock("root"))]


def test_a_schedule_of_one_rule_is_not_that_of_the_next() -> None:
    first, products = inlined(doubled_root)
    assert names(first) == ["B"]
    assert not products
    first.fuse(*first.get_loops(first.get_sblock("B")))
    second, _ = inlined(doubled_root)
    assert len(second.get_loops(second.get_sblock("B"))) == 2


def test_another_function_is_read_anew() -> None:
    inlined(doubled_root)
    _, products = inlined(product)
    assert [*products] == ["C"]
    products.clear()
    assert inlined(product)[1]
    again = tirx.PrimFunc(doubled_root.params, doubled_root.body, attrs=doubled_root.attrs)
    assert not inlined(again)[1]
