"""``@kernel`` and ``@autotune``: schedules of one's own as functions of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import tvm
from tvm import s_tir

from .. import te
from ..build import lower
from ..checks import is_function, whole_number
from ..errors import ScheduleError
from ..schedule import Schedule
from ..target import cuda_target, default_arch
from ..tune.search.tune import Result, tune
from ..tune.space.knobs import Knob
from . import disk
from .arrays import Argument, read
from .fixed import FixedKernel

#: Keywords of a knob's value have no place among the arrays.
_ARRAYS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ScheduledFunction:
    """A schedule as a function of arrays: what :func:`kernel` makes.

    For each new combination of shapes and types the function is called with placeholders; its
    kernel is kept.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not is_function(function):
            raise ScheduleError(f"@kernel decorates a function, not {function!r}.")
        update_wrapper(self, function)
        self._function = function
        try:
            found = inspect.signature(function).parameters.values()
        except ValueError:
            raise ScheduleError(
                f"@kernel decorates a function whose parameters it can read, not {function!r}."
            ) from None
        self.knobs = [p.name for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY]
        self.arrays = [p.name for p in found if p.kind in _ARRAYS]
        self._kernels: dict[Any, FixedKernel] = {}

    @property
    def name(self) -> str:
        """The function's."""
        return str(getattr(self._function, "__name__", "kernel"))

    def __repr__(self) -> str:
        taken = ", ".join([*self.arrays, *(["*"] if self.knobs else []), *self.knobs])
        return f"<{self.name}({taken})>"

    def __call__(self, *arrays: Any, **knobs: Any) -> Any:
        """Run on arrays; knobs are the function's own keywords."""
        arguments = self.read(arrays)
        return self._kernel(arguments, knobs).run(arguments)

    def kernel(self, *arrays: Any, **knobs: Any) -> FixedKernel:
        """The kernel for arrays of these shapes and types."""
        return self._kernel(self.read(arrays), knobs)

    def read(self, arrays: Sequence[Any]) -> list[Argument]:
        """See arrays as arguments; ScheduleError if their number is another."""
        if len(arrays) != len(self.arrays):
            raise ScheduleError(
                f"{self.name} takes {len(self.arrays)} arrays ({', '.join(self.arrays)}), not "
                f"{len(arrays)}."
            )
        return [read(f"{n} of {self.name}", a) for n, a in zip(self.arrays, arrays, strict=True)]

    def scheduled(
        self, arguments: Sequence[Argument], knobs: Any
    ) -> tuple[Any | None, s_tir.Schedule]:
        """The computation, where it is known, and what the function makes of it."""
        if strange := [name for name in knobs if name not in self.knobs]:
            raise ScheduleError(
                f"{self.name} has no keyword {', '.join(strange)}; it has "
                f"{', '.join(self.knobs) or 'none'}."
            )
        inputs = [
            te.placeholder(one.shape, one.dtype, name=name)
            for name, one in zip(self.arrays, arguments, strict=True)
        ]
        made = self._function(*inputs, **knobs)
        if isinstance(made, Schedule):
            args = [*inputs, *(op.output(0) for op in made.outputs)]
            return te.create_prim_func(args), made.to_schedule(args)
        func, sch = made if isinstance(made, tuple) and len(made) == 2 else (None, made)
        if isinstance(sch, s_tir.Schedule):
            return func, sch
        raise ScheduleError(
            f"{self.name} returned a {type(made).__name__}; a schedule is wanted: that of "
            "te.create_schedule, or a tvm.s_tir.Schedule."
        )

    def _kernel(self, arguments: Sequence[Argument], knobs: Any) -> FixedKernel:
        arch = default_arch()
        shapes = tuple((one.shape, one.dtype) for one in arguments)
        key = (arch, shapes, tuple(sorted(knobs.items())))
        if not _is_key(key):
            raise ScheduleError(f"Knobs of {self.name} are numbers or words, not {knobs!r}.")
        if key not in self._kernels:
            module = self.scheduled(arguments, knobs)[1].mod
            lowered = lower(module, target=cuda_target(arch))
            self._kernels[key] = FixedKernel(self.name, lowered, arch, _results(module, arguments))
        return self._kernels[key]


def _is_key(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _results(module: tvm.IRModule, arguments: Sequence[Argument]) -> int:
    (func,) = (one for _, one in module.functions_items())
    return len(func.params) - len(arguments)


class Autotuned(ScheduledFunction):
    """A schedule whose knobs are searched when it meets new shapes: what :func:`autotune` makes.

    ``results`` has what each search found.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        knobs: Sequence[Knob],
        key: Callable[..., Any] | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(function)
        if missing := [one.name for one in knobs if one.name not in self.knobs]:
            raise ScheduleError(
                f"{self.name} has no keyword {', '.join(missing)}; a knob is one of its "
                f"keyword-only parameters, def {self.name}({', '.join(self.arrays)}, *, ...)."
            )
        self._space, self._key, self._options = tuple(knobs), key, options
        self.results: dict[Any, Result] = {}

    def _kernel(self, arguments: Sequence[Argument], knobs: Any) -> FixedKernel:
        names = [one.name for one in self._space]
        if all(name in knobs for name in names):
            return super()._kernel(arguments, knobs)
        key = self._key_of(arguments)
        if key not in self.results:
            self.results[key] = self._search(arguments, knobs)
        best = self.results[key].best
        if best is None:
            # Its sentence says so.
            self.results.pop(key).schedule()
        assert best is not None
        return super()._kernel(arguments, {**best.config, **knobs})

    def _key_of(self, arguments: Sequence[Argument]) -> Any:
        if self._key is None:
            return tuple((one.shape, one.dtype) for one in arguments)
        key = self._key(*(one.data for one in arguments))
        if not _is_key(key):
            raise ScheduleError(
                f"key tells shapes apart by numbers, words or tuples of these, not by {key!r}."
            )
        return key

    def _search(self, arguments: Sequence[Argument], given: Any) -> Result:
        def schedule(_: s_tir.Schedule, config: Any) -> s_tir.Schedule:
            return self.scheduled(arguments, {**config, **given})[1]

        default = {one.name: one.default for one in self._space}
        func, _ = self.scheduled(arguments, {**default, **given})
        if func is None:
            raise ScheduleError(
                f"autotune needs what {self.name} computes before any schedule: return func, sch, "
                "where sch = Schedule(func), or a TE-style schedule."
            )
        options = {"log": disk.folder() / "tuned", **self._options}
        return tune(func, schedule=schedule, knobs=self._space, **options)


def kernel(function: Callable[..., Any]) -> ScheduledFunction:
    """Make a function of arrays of one that schedules a computation.

    The function gets a placeholder for each array, named as its parameters, and returns a schedule,
    TE-style or of TensorIR; of the latter ``func, sch`` for :func:`autotune`. Keyword-only
    parameters are choices that a call, or :func:`autotune`, makes. Arrays and results are as of
    :func:`op`.

    Examples
    --------
    >>> @kernel
    ... def doubled(A):
    ...     B = te.compute(A.shape, lambda *at: A[at] * 2, name="B")
    ...     s = te.create_schedule(B.op)
    ...     s[B].auto_coalesce()
    ...     return s
    >>> print(doubled(np.ones((4, 32), "float32"))[0, 0])
    2.0
    """
    return ScheduledFunction(function)


def autotune(
    *,
    knobs: Sequence[Knob],
    key: Callable[..., Any] | None = None,
    trials: int = 32,
    **options: Any,
) -> Callable[[Any], Autotuned]:
    """Search the knobs of a ``@kernel`` when it is called with new shapes or types.

    Trials are kept in the cache's folder, so that the next process finds the winner there.

    Parameters
    ----------
    knobs : sequence of Knob
        Made by :func:`tvm_layout_ext.knob`, named as keyword-only parameters of the function.
    key : callable, optional
        ``key(*arrays)`` tells apart what is searched for anew; by default shapes and types.
    trials : int
        Configurations to try.
    **options
        For :func:`tvm_layout_ext.tune`: ``runner``, ``log``, ``seed``, ``progress``.

    Examples
    --------
    >>> @autotune(knobs=[knob("threads", (64, 128, 256))], trials=3)   # doctest: +SKIP
    ... @kernel
    ... def doubled(A, *, threads): ...
    """
    whole_number("The number of trials", trials, 1, ScheduleError)
    if not isinstance(knobs, Sequence) or not knobs or not all(isinstance(k, Knob) for k in knobs):
        raise ScheduleError(f"knobs are a list made by tlx.knob(name, values), not {knobs!r}.")
    if key is not None and not is_function(key):
        raise ScheduleError(f"key is a function of the arrays, not {key!r}.")

    def decorate(function: Any) -> Autotuned:
        plain = function._function if isinstance(function, ScheduledFunction) else function
        return Autotuned(plain, knobs, key, {"trials": trials, **options})

    return decorate
