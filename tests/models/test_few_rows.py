"""Few rows by small weights of 16 bits have a kernel whose lanes read fragments as they lie."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import te
from tvm.relax import op

import tvm_layout_ext as tlx
from tests.models.running import check, only, scheduled
from tests.programs.relaxed import relax_module


def product(
    m: int, n: int, k: int, dtype: str = "float16", *, turned: bool = True, add: bool = True
) -> tvm.IRModule:
    """``x @ w^T``, or ``x @ w``, plus what is added to it."""

    def build(x: Any, w: Any, r: Any) -> Any:
        out = op.matmul(x, op.permute_dims(w) if turned else w)
        return op.add(out, r) if add else out

    return relax_module(
        build, x=(1, m, k), w=(n, k) if turned else (k, n), r=(1, m, n), dtype=dtype
    )


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [
        (8, 128, 256, "float16"),
        (3, 72, 256, "bfloat16"),  # Rows and columns that end inside of a tile.
        (2, 40, 768, "float16"),
        (5, 16, 3072, "bfloat16"),
    ],
)
def test_few_rows_are_multiplied_as_weights_lie(
    m: int, n: int, k: int, dtype: str, add: bool
) -> None:
    check(only(product(m, n, k, dtype, add=add)), "few rows")


def test_all_warps_of_a_block_share_the_terms_of_few_columns() -> None:
    """And read weights in vectors, before anything that a kernel before them writes."""
    one = only(product(8, 64, 2048))
    assert one.choice.text.endswith("8 rows by mma.sync, 8 warps to a column.")
    func = one.after.with_attr({"layout_ext.in_sequence": True, "layout_ext.constants": [1]})
    (kernel,) = tlx.device_program(func.with_attr("global_symbol", "main")).kernels.values()
    early, late = str(kernel.body).split('T.ptx.griddepcontrol("wait", "")')
    assert early.count("= w[T.Ramp(") == 16  # 8 vectors of two columns each.
    assert "= w[" not in late
    assert "= x[" in late


@pytest.mark.parametrize(
    ("sizes", "wishes"),
    [
        ((1, 128, 256), {}),  # A sum.
        ((9, 128, 256), {}),
        ((8, 128, 272), {}),  # No whole vectors of four lanes,
        ((8, 128, 1056), {}),  # or of all warps.
        ((8, 2048, 2304), {}),  # Tiles of wgmma are as fast,
        ((8, 128, 4096), {}),  # and than terms in two turns.
        ((8, 128, 256), {"turned": False}),
        ((8, 128, 256), {"dtype": "float32"}),
    ],
)
def test_other_products_have_other_rules(
    sizes: tuple[int, int, int], wishes: dict[str, Any]
) -> None:
    assert "few rows" not in [one.choice.rule for one in scheduled(product(*sizes, **wishes))]


@pytest.mark.parametrize("padded", ["x", "w"])
def test_rows_that_begin_inside_of_vectors_are_no_vectors(padded: str) -> None:
    """Of 258 elements 256 are read: nvcc has no load of 16 bytes at the second row."""
    shapes = {"x": (8, 256), "w": (64, 256)}
    shapes[padded] = (shapes[padded][0], 258)
    x, w = (te.placeholder(shapes[name], "float16", name=name) for name in ("x", "w"))
    k = te.reduce_axis((0, 256), name="k")
    y = te.compute(
        (8, 64),
        lambda i, j: te.sum(x[i, k].astype("float32") * w[j, k].astype("float32"), axis=k),
        name="y",
    )
    one = only(tvm.IRModule({"main": te.create_prim_func([x, w, y])}))
    assert one.choice.rule != "few rows"
