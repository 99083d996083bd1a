"""Lowered products that are printed as TVMScript and parsed again."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.programs.products import Product, scheduled
from tvm_layout_ext import lower, simulate


@pytest.mark.parametrize("transposed", [False, True])
def test_a_lowered_product_computes_the_same_once_printed_and_parsed(transposed: bool) -> None:
    product = Product(shape=(40, 33, 17), batch=2, b_transposed=transposed)
    lowered = lower(scheduled(product, (64, 64, 16)).mod)
    parsed = tvm.script.from_source(lowered.script())
    arguments, want = product.inputs()
    for mod in (lowered, parsed):
        (got,) = simulate(mod, *arguments, progress=False).outputs.values()
        np.testing.assert_allclose(got, want, atol=1e-4)
