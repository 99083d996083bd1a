"""Whatever a public callable is given, it works or says what is wrong in one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import isfunction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.stages import elementwise
from tvm_layout_ext import te
from tvm_layout_ext.errors import LayoutExtError

#: Of every kind that somebody might pass by mistake.
WRONG: list[Any] = [
    *(None, -1, 0, 3.5, float("nan"), 10**20, True, "nosuch", "", b"x", [], {}, (), object()),
    *([None], [-1, 2], {"a": None}, np.zeros(0), np.zeros((3, 3), "complex64")),
    *(tvm.IRModule({}), tvm.tirx.Var("n", "int64"), lambda: 1),
]
ARRAYS = [
    *(np.zeros(shape, "float32") for shape in ((3,), (0, 4), (2, 3, 4, 5, 6))),
    *(np.zeros((4, 4), dtype) for dtype in ("int64", "complex64")),
]
PUBLIC = [
    name
    for name in dir(tlx)
    if not name.startswith("_") and name not in ("demo", "rpc_server")
    if callable(getattr(tlx, name)) and not inspect.ismodule(getattr(tlx, name))
    if not (inspect.isclass(getattr(tlx, name)) and issubclass(getattr(tlx, name), BaseException))
]
PRIMITIVES = [
    name
    for name, value in vars(s_tir.Schedule).items()
    if "tvm_layout_ext" in (getattr(value, "__module__", None) or "") and not name.startswith("_")
]


@pytest.fixture(autouse=True)
def _files_go_to_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fresh() -> te.Schedule:
    schedule: te.Schedule = elementwise()[2]
    return schedule


def scheduled() -> s_tir.Schedule:
    return fresh().sch


METHODS = [
    (kind, name)
    for kind, one in (("schedule", fresh()), ("stage", fresh()["B"]))
    for name in dir(one)
    if not name.startswith("_") and callable(getattr(one, name))
]


def holds(call: Callable[..., Any], /, *given: Any, **named: Any) -> None:
    """Fail if a call ends otherwise than by a result, or by an error that tells what is wrong."""
    try:
        call(*given, **named)
        return
    except (LayoutExtError, TypeError) as error:
        found: Exception = error
    # A TypeError is Python's own, of a signature.
    is_told = "argument" in str(found) or not isinstance(found, TypeError)
    assert is_told, (given, named, found)
    # What Python says of a module that is missing ends in its name.
    is_sentence = str(found).rstrip().endswith((".", "'")) and "\n" not in str(found).strip()
    assert is_sentence or isinstance(found, TypeError), (given, named, found)
    assert len(str(found)) <= 500, (given, named, found)


def options(call: Callable[..., Any], first: int) -> Iterator[str]:
    """Names of the parameters behind the first ones."""
    listed = list(inspect.signature(call).parameters.values())[first:]
    return (one.name for one in listed if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))


@pytest.mark.parametrize("name", PUBLIC)
def test_functions(name: str) -> None:
    call = getattr(tlx, name)
    for wrong in WRONG:
        holds(call, wrong)
    try:
        others = list(options(call, 1))
    except (TypeError, ValueError):  # It has no signature.
        return
    for other in others:
        for wrong in WRONG[::2]:
            holds(call, scheduled(), **{other: wrong})


LINEAR = tlx.layout.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]).to_linear([64, 64])
LAYOUTS: dict[str, tuple[Any, list[Any]]] = {
    **{name: (getattr(tlx.layout, name), []) for name in tlx.layout.__all__ if name != "Movement"},
    "bank_conflicts of two": (tlx.layout.bank_conflicts, [LINEAR]),
    "movement of two": (tlx.layout.movement, [LINEAR]),
    "optimal_swizzle of two": (tlx.layout.optimal_swizzle, [LINEAR]),
    "a swizzle of 32 bits": (tlx.layout.optimal_swizzle, [LINEAR, LINEAR]),
    "wavefronts of one": (tlx.layout.wavefronts, [[0]]),
    **{
        f"linear.{name}": (getattr(LINEAR, name), [])
        for name in ("apply", "apply_arrays", "compose", "sublayout", "reshape_outs", "rename_outs")
    },
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    call, first = LAYOUTS[name]
    for wrong in WRONG:
        for count in (1, 2, 3):
            holds(call, *first, *[wrong] * count)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitives(name: str) -> None:
    for wrong in WRONG:
        holds(getattr(scheduled(), name), wrong)
    for other in options(getattr(s_tir.Schedule, name), 2):
        for wrong in WRONG:
            sch = scheduled()
            holds(getattr(sch, name), "B", **{other: wrong})
            sch = scheduled()
            holds(getattr(sch, name), sch.get_loops("B")[0], **{other: wrong})


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_methods_of_te(kind: str, name: str) -> None:
    def method() -> tuple[Callable[..., Any], te.Schedule]:
        s = fresh()
        return getattr(s if kind == "schedule" else s["B"], name), s

    for wrong in WRONG:
        holds(method()[0], wrong)
        call, s = method()
        tensor = s["B"].op.output(0)
        holds(call, tensor if kind == "schedule" else tensor.op.axis[0], wrong)
        for other in options(call, 0):
            holds(method()[0], **{other: wrong})


@pytest.mark.parametrize("name", [name for name, it in vars(tvm.te).items() if isfunction(it)])
def test_functions_of_te(name: str) -> None:
    call = getattr(te, name)
    for wrong in WRONG:
        for count in (1, 2, 3):
            holds(call, *[wrong] * count)


def test_errors_of_a_function_of_the_users_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError):
        te.compute((4,), lambda i: 1 // 0)
    mean = te.comm_reducer(lambda p, q: p // (1 // 0), lambda t: tvm.tirx.const(0, t))
    with pytest.raises(ZeroDivisionError):
        mean(te.placeholder((4,))[0], te.reduce_axis((0, 4)))


def test_python_says_itself_which_arguments_are_missing() -> None:
    for call in (te.abs, te.compute, s_tir.Schedule.cluster, tlx.layout.wavefronts):
        with pytest.raises(TypeError, match=rf"^{call.__name__}\(\) missing"):
            call()


@pytest.mark.parametrize("name", [str(getattr(one, "name", one)) for one in tlx.operators()])
def test_operators(name: str) -> None:
    call = tlx.op(name)
    for wrong in (*ARRAYS, None, 3, "x", [1, 2]):
        for count in (1, 2, 3):
            holds(call, *[wrong] * count)


def test_nodes_of_te_are_refused_where_tvm_would_end_the_process() -> None:
    v, one = te.var("v", "float32"), tvm.tirx.const(0, "float32")
    reducer = te.CommReducer([v], [v], [v], [one])
    assert isinstance(reducer, tvm.tirx.CommReducer)
    assert isinstance(reducer, te.CommReducer)
    assert not isinstance(v, te.CommReducer)
    with pytest.raises(tlx.ScheduleError, match="CommReducer needs values without None of ident"):
        te.CommReducer([v], [v], [v], [None])
    with pytest.raises(tlx.ScheduleError, match=r"te.Reduce needs a value of combiner, not None"):
        te.Reduce(None, [v], [], None, 0)
