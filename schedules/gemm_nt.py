"""Matrix product ``C = A @ B^T`` on tensor cores: B is stored N x K, as weights of torch's Linear.

Schedule, knobs, types and legality are :mod:`.gemm`'s with the other layout of B. Both operands
lie along K, so ``ldmatrix`` loads the fragments of either, also of 8 and of 32 bits.
"""

from __future__ import annotations

from tvm_layout_ext.schedules.gemm import operator

OPERATOR = operator("gemm_nt", b_transposed=True)
