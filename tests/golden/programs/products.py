"""Products that ``use_tensor_core`` puts on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tests.golden.programs.program import Program
from tests.programs import tensor_kernels
from tests.programs.products import Product, scheduled
from tests.schedule.primitives.test_use_tensor_core import TYPES

__all__ = ["programs"]

_EPILOGUE = Product(out="float16", epilogue=True, b_transposed=True)
_RAGGED: dict[str, Product] = {
    "ragged": replace(_EPILOGUE, shape=(50, 72, 40)),
    "odd": replace(_EPILOGUE, shape=(17, 9, 33)),
    "batched": replace(_EPILOGUE, shape=(40, 70, 24), batch=3),
    "one-column": replace(_EPILOGUE, shape=(65, 1, 64), batch=2),
}


def programs() -> Iterator[Program]:
    for name, product in TYPES.items():
        for a in (False, True):
            for b in (False, True):
                turned = replace(product, a_transposed=a, b_transposed=b)
                if a and b and name not in ("f16", "tf32", "s8"):
                    continue
                order = f"{'tn'[not a]}{'tn'[not b]}"
                outputs = int(name in ("f16", "s8") and a == b)
                yield Program(f"product/{name}-{order}", partial(scheduled, turned), outputs)
    for name, product in _RAGGED.items():
        yield Program(f"product/{name}", partial(scheduled, product, (64, 64, 32)))
    for name in ("f16", "tf32"):
        made = partial(scheduled, TYPES[name], (64, 64, 32), (4, 4))
        yield Program(f"product/{name}-16-warps", made)
    for arch in ("sm_75", "sm_80", "sm_89", "sm_120"):
        yield Program(f"product/f16-{arch}", partial(scheduled, TYPES["f16"]), arch=arch)
    for name in tensor_kernels.CASES:
        made = partial(tensor_kernels.gemm, name, marked=True)
        yield Program(f"product/by-tvms-intrinsics-{name.replace(' ', '-')}", made)
