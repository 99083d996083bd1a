"""The types that the GEMM multiplies: sums, result, instruction, inputs, reference, tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import ml_dtypes
import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.gpu.tf32 import rounded_to_tf32
from tvm_layout_ext.intrin.instructions import choose
from tvm_layout_ext.ir.annotations import INPUT_PRECISION, TF32
from tvm_layout_ext.tune.space.knobs import Refusal
from tvm_layout_ext.tune.space.operator import Tolerance

__all__ = [
    "DTYPES",
    "Numbers",
    "check_instruction",
    "compute",
    "inputs",
    "numbers",
    "reference",
    "tolerance",
    "traffic",
]


@dataclass(frozen=True)
class Numbers:
    """Types of the sums and of C, and the instruction, as ``sch.use_tensor_core`` takes it."""

    sums: str
    result: str
    instruction: str = "auto"

    @property
    def exact(self) -> bool:
        """Whether products and sums lose no bit."""
        return self.sums == "int32"


#: By the type of the operands; :mod:`.instructions` has no other. Results of
#: 8-bit floats are halves, as ``torch._scaled_mm`` gives them: 3 bits of mantissa hold no sum.
_NUMBERS = {
    "float16": Numbers("float32", "float16"),
    "bfloat16": Numbers("float32", "bfloat16"),
    "float32": Numbers("float32", "float32", "mma.m16n8k8.f32.tf32"),
    "int8": Numbers("int32", "int32"),
    "uint8": Numbers("int32", "int32"),
    "float8_e4m3fn": Numbers("float32", "float16"),
    "float8_e5m2": Numbers("float32", "float16"),
}
DTYPES = tuple(_NUMBERS)


def numbers(dtype: str) -> Numbers:
    """Look a type of operands up, one of :data:`DTYPES`."""
    return _NUMBERS[dtype]


def compute(shape: tuple[int, ...], dtype: str, b_transposed: bool = False) -> list[Any]:
    """What is computed; both operands are widened to the type of the sums first.

    Where C has the type of the sums it is they, as in a Relax ``matmul`` of that ``out_dtype``. A
    product of float32 carries annotation :data:`.INPUT_PRECISION`, so that no exact one is taken
    for it.
    """
    (M, N, K), of = shape, numbers(dtype)
    A = te.placeholder((M, K), dtype, name="A")
    B = te.placeholder((N, K) if b_transposed else (K, N), dtype, name="B")
    k = te.reduce_axis((0, K), name="k")

    def term(i: Any, j: Any) -> Any:
        b = B[j, k] if b_transposed else B[k, j]
        return A[i, k].astype(of.sums) * b.astype(of.sums)

    product = te.compute(
        (M, N),
        lambda i, j: te.sum(term(i, j), axis=k),
        name="product",
        attrs={INPUT_PRECISION: TF32} if dtype == "float32" else None,
    )
    if of.result == of.sums:
        return [A, B, product]
    return [A, B, te.compute((M, N), lambda i, j: product[i, j].astype(of.result), name="C")]


def check_instruction(
    name: str,
    operand: str,
    sums: str,
    tile_k: int,
    architecture: Architecture,
    *,
    tf32: bool = False,
) -> Refusal | None:
    """Why a GPU has no instruction for two types, or none that fits ``tile_k``, or None."""
    try:
        one = choose(name, operand, sums, architecture, tf32=tf32)
    except ScheduleError as error:
        return Refusal("no instruction", str(error))
    if tile_k % one.k:
        return Refusal(
            "tile of instruction",
            f"tile_k {tile_k} is no multiple of the {one.k} of {one.name}.",
        )
    return None


def traffic(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of A, B and C."""
    M, N, K = shape
    size, result = np.dtype(dtype).itemsize, np.dtype(numbers(dtype).result).itemsize
    return size * (M * K + K * N) + result * M * N


def inputs(
    shape: tuple[int, ...], dtype: str, rng: np.random.Generator, b_transposed: bool = False
) -> list[np.ndarray]:
    """Operands: all values of an integer type, or normally distributed ones.

    Those of float32 are ones that tf32 has, so that it does not matter whether the others are
    rounded or cut off, which the PTX ISA leaves open.
    """
    M, N, K = shape
    return [_drawn(size, dtype, rng) for size in ((M, K), (N, K) if b_transposed else (K, N))]


def _drawn(size: tuple[int, int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    if numbers(dtype).exact:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, size, dtype, endpoint=True)
    values = rng.standard_normal(size, np.float32)
    if dtype == "float32":
        return rounded_to_tf32(values)
    return values.astype(dtype)


def reference(a: np.ndarray, b: np.ndarray, b_transposed: bool = False) -> np.ndarray:
    """Multiply in float64, which holds every sum of integers; those wrap into 32 bits."""
    product = a.astype(np.float64) @ (b.T if b_transposed else b).astype(np.float64)
    of = numbers(str(a.dtype))
    if of.exact:
        product = product.astype(np.int64)
    return product.astype(of.result)


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """Allow for float32 sums of K terms that are cut off, and for one rounding to C's type.

    Products and sums of integers are exact. Sums of products of normally distributed numbers are of
    the size of the root of K, and tensor cores cut them off, rather than round them, once for each
    few terms that they add together.

    * 16-bit types: once for 16 terms, by ``2**-23`` of the sum.
    * tf32: once for 4 (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
      cores", 2021). As no rounding of C hides it, the largest of all sums count, six times the root
      of K. Operands lose nothing: :func:`inputs` draws them so.
    * fp8: each product by ``2**-13`` of the largest beside it where tensor cores keep 14 bits (the
      DeepSeek-V3 report, 2024, section 3.3.2), and products reach twice the root of their mean
      square; the sum itself by as much, once for the 32 terms of a ``wgmma``.
    """
    of, depth = numbers(dtype), shape[2]
    if of.exact:
        return Tolerance()
    rtol = 2 * float(ml_dtypes.finfo(of.result).eps)
    if "float8" in dtype:
        return Tolerance(rtol + ceil(depth / 32) * 2.0**-13, depth * 2.0**-12 + 1e-6)
    cuts, largest = (ceil(depth / 4), 6) if dtype == "float32" else (ceil(depth / 16), 1)
    return Tolerance(rtol, float(cuts * largest * sqrt(depth) * 2.0**-23 + depth * 2.0**-24 + 1e-6))
