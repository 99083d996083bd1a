"""``ApplyBest``: what ``tvm.compile`` compiles inside it takes its schedules from a log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import dlight
from tvm.target import Target
from tvm.tirx import compilation_pipeline

from ..records.records import Source
from .apply import Applied, Best, fuse_transposes

_PIPELINE = "s_tir"
_active: ContextVar[tuple[Best, ...]] = ContextVar("layout_ext_best", default=())


class ApplyBest:
    """While entered, ``tvm.compile`` gives functions the best schedules that were recorded.

    Which record stands for a function is as of :func:`apply_best`, and so are ``source`` and
    ``nearest``. In a Relax module this is done after fusion, before TVM's default schedules. It
    holds for the thread or the task that entered it; of nested contexts the innermost is asked
    first.

    Examples
    --------
    >>> with ApplyBest("tuning_logs") as best:     # doctest: +SKIP
    ...     kernel = tvm.compile(mod, target="cuda")
    >>> print(best.applied[0].text)                # doctest: +SKIP
    """

    def __init__(self, source: Source, *, nearest: bool = True) -> None:
        self._best = Best(source, nearest)
        self._tokens: list[Token[tuple[Best, ...]]] = []

    def __repr__(self) -> str:
        return f"ApplyBest: {len(self.applied)} functions were compiled"

    @property
    def applied(self) -> list[Applied]:
        """What became of each function that was compiled, in order."""
        return self._best.applied

    def __enter__(self) -> ApplyBest:
        _Hooks.enter()
        self._tokens.append(_active.set((*_active.get(), self._best)))
        return self

    def __exit__(self, *_: object) -> None:
        _active.reset(self._tokens.pop())
        _Hooks.leave()


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.ApplyBest")
def _apply(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
    for best in reversed(_active.get()):
        mod = best.module(mod, Target.current(allow_none=True))
    return mod


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.FuseTransposes")
def _fuse(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
    return fuse_transposes(mod) if _active.get() else mod


class _Hooks:
    """Our passes in TVM's pipelines, while anybody wants them.

    TensorIR's pipeline is registered by name; Relax's calls ``dlight.ApplyDefaultSchedule`` by name
    after it has fused, and before that a list of passes that lower operators, headed by ours:
    dispatch to libraries is done by then, and transposes are still operators.
    """

    _lock = threading.Lock()
    _users = 0
    _stock: tuple[Callable[[], Any], Any, Any] | None = None

    @classmethod
    def enter(cls) -> None:
        with cls._lock:
            cls._users += 1
            if cls._users > 1:
                return
            pipeline, default, legalize = (
                compilation_pipeline.PIPELINE_MAP[_PIPELINE],
                dlight.ApplyDefaultSchedule,
                relax.backend.cuda.legalize_passes,
            )
            cls._stock = pipeline, default, legalize

            def headed() -> Any:
                passes, host, device = pipeline()
                return tvm.transform.Sequential([_apply, passes]), host, device

            compilation_pipeline.register_tir_pipeline(_PIPELINE, headed)
            dlight.ApplyDefaultSchedule = lambda *rules: tvm.transform.Sequential(
                [_apply, default(*rules)]
            )
            _set_legalize(lambda target: [_fuse, *legalize(target)])

    @classmethod
    def leave(cls) -> None:
        with cls._lock:
            cls._users -= 1
            if cls._users == 0 and cls._stock is not None:
                pipeline, dlight.ApplyDefaultSchedule, legalize = cls._stock
                _set_legalize(legalize)
                compilation_pipeline.register_tir_pipeline(_PIPELINE, pipeline)
                cls._stock = None


def _set_legalize(passes: Callable[[Target], list[Any]]) -> None:
    # The default pipeline calls its own module's name, pipelines of one's own the package's.
    relax.backend.cuda.legalize_passes = passes
    relax.backend.cuda.pipeline.legalize_passes = passes
