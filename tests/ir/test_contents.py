from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock
from tvm.script import tirx as T

from tvm_layout_ext.ir.contents import contents


@T.prim_func(s_tir=True)
def roots(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")) -> None:
    for i in T.serial(8, annotations={"layout_ext.test": 1}):
        with T.sblock("B"):
            T.sblock_attr({"layout_ext.other": 2})
            B[i] = T.sqrt(A[i]) + T.Select(i < 4, T.float32(1), T.exp(A[i]))


def test_nodes_names_and_annotations_are_told() -> None:
    found = contents(roots.body)
    assert [str(block.name_hint) for block in found.nodes(SBlock)] == ["B", "root"]
    assert len(found.nodes(tirx.For)) == len(found.nodes(tirx.Select)) == 1
    assert found.calls == {"tirx.sqrt", "tirx.exp"}
    assert found.annotations == {"layout_ext.test", "layout_ext.other"}


def test_another_statement_has_other_contents() -> None:
    assert contents(roots.body).calls
    loop = tirx.For(tirx.Var("i", "int32"), 0, 4, tirx.ForKind.SERIAL, tirx.Evaluate(0))
    assert not contents(loop).calls
    assert contents(roots.body) is contents(roots.body)
