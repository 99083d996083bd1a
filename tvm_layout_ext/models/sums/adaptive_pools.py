"""Adaptive average pools whose windows are of several sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import relax, te, tirx

from ..relax_values import NARROW_FLOATS

__all__ = ["POOLED_AXES", "lower_uneven_pool"]

#: The axes that each operator pools.
POOLED_AXES = {
    "relax.nn.adaptive_avg_pool1d": "W",
    "relax.nn.adaptive_avg_pool2d": "HW",
    "relax.nn.adaptive_avg_pool3d": "DHW",
}


@dataclass(frozen=True)
class _Windows:
    """Where the ``many`` windows of ``size`` places begin and end, as PyTorch has them."""

    size: int
    many: int

    def begin(self, i: tirx.Expr) -> tirx.Expr:
        return i * self.size // self.many

    def end(self, i: tirx.Expr) -> tirx.Expr:
        return ((i + 1) * self.size + self.many - 1) // self.many

    @property
    def longest(self) -> int:
        return max(self.end(i) - self.begin(i) for i in range(self.many))


def lower_uneven_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Sums over the longest window, in which terms behind a window's own end are zero.

    TVM 0.27's have loops whose extents depend on the place, which no rule schedules. None where
    sizes are symbolic, or all windows are of one size.
    """
    layout, sizes = str(call.attrs.layout), call.attrs.output_size
    axes = [layout.index(axis) for axis in POOLED_AXES[str(call.op.name)]]
    shape = call.args[0].ty.shape
    known = all(isinstance(shape[at], tirx.IntImm) for at in axes)
    if sizes is None or not known:
        return None
    windows = {at: _Windows(int(shape[at]), int(n)) for at, n in zip(axes, sizes, strict=True)}
    if not any(one.size % one.many for one in windows.values()):
        return None
    dtype = str(call.ty.dtype)
    total = "float32" if dtype in NARROW_FLOATS else dtype

    def pooled(x: te.Tensor) -> te.Tensor:
        longest = {at: tirx.IntImm("int64", one.longest) for at, one in windows.items()}
        terms = {at: te.reduce_axis((0, n), f"r{at}") for at, n in longest.items()}

        def added(*place: tirx.Var) -> tirx.Expr:
            at, inside = [*place], []
            for d, one in windows.items():
                at[d] = one.begin(place[d]) + terms[d].var
                if one.size % one.many:
                    inside.append(at[d] < one.end(place[d]))
            zero = tirx.const(0, total)
            value = tirx.if_then_else(tirx.all(*inside), x(*at).astype(total), zero)
            return te.sum(value, axis=[*terms.values()])

        def mean(*place: tirx.Var) -> tirx.Expr:
            many = prod(one.end(place[d]) - one.begin(place[d]) for d, one in windows.items())
            return (sums(*place) / many.astype(total)).astype(dtype)

        shape = [windows[at].many if at in windows else n for at, n in enumerate(x.shape)]
        shape = [tirx.IntImm("int64", n) if isinstance(n, int) else n for n in shape]
        sums = te.compute(shape, added, name="adaptive_pool_sum")
        return te.compute(shape, mean, name="adaptive_pool_avg")

    hint = str(call.op.name).rsplit(".", 1)[-1]
    return builder.call_te(pooled, call.args[0], primfunc_name_hint=hint)
