"""What knows which TVM this is: the version check, the stock pass list, private functions of TVM.

A new TVM release means reading this file, and `ir/ops.py` for the names of operators.
"""

from __future__ import annotations

import errno
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from inspect import ismethod
from types import ModuleType
from typing import Any

#: The order of TVM's walks that shows nodes behind those in them.
_POSTORDER = 1
#: So many servers may start on one machine at the same moment.
_LISTENERS = 64

_PINS = {
    "apache-tvm": ((0, 27), (0, 28), "its Python API moves between minor versions"),
    "apache-tvm-ffi": ((0, 1, 14), (0, 1, 15), "0.1.15 crashes the process in Schedule.tensorize"),
}


def _numbers(version: str) -> tuple[int, ...]:
    """Leading release numbers of a version string: ``0.27.0.post1`` gives ``(0, 27, 0)``."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def check_versions(installed: Callable[[str], str] = metadata.version) -> None:
    """Refuse, before TVM is imported, a TVM or FFI version this package does not support."""
    mend = "pip install " + " ".join(
        f"'{name}>={_dotted(low)},<{_dotted(high)}'" for name, (low, high, _) in _PINS.items()
    )
    for name, (low, high, why) in _PINS.items():
        try:
            version = installed(name)
        except metadata.PackageNotFoundError:
            raise ImportError(
                f"tvm_layout_ext needs {name}, which is not installed; run: {mend}"
            ) from None
        if not low <= _numbers(version) < high:
            raise ImportError(
                f"tvm_layout_ext needs {name}>={_dotted(low)},<{_dotted(high)} ({why}) "
                f"but found {version}; run: {mend}"
            )


def tvm_version() -> str:
    """Version of the installed TVM wheel."""
    return metadata.version("apache-tvm")


def has_gpu() -> bool:
    """Whether a CUDA driver and device are there."""
    import tvm

    return bool(tvm.cuda(0).exist)


def pass_name(compiler_pass: Any) -> str:
    """Registered name of a pass, e.g. ``s_tir.InjectSoftwarePipeline``."""
    return str(compiler_pass.info.name)


def register_errors() -> None:
    """Let errors of passes cross TVM's C++ frames with their own class instead of RuntimeError."""
    from tvm_ffi import register_error

    from . import errors

    # TVM has a ScheduleError of its own under the bare name.
    for name in errors.__all__:
        register_error(f"tvm_layout_ext.{name}", getattr(errors, name))
    # Ctrl-C inside one of our passes would come out of TVM as a RuntimeError, and be taken for one;
    # so would a name that is not there, and be told as a refusal of TVM's. The FFI itself knows
    # others that only a mistake raises, as AttributeError and AssertionError.
    for kind in (KeyboardInterrupt, NameError, UnboundLocalError):
        register_error(kind.__name__, kind)


_capture_lock = threading.Lock()


def stock_passes(factory: Callable[[], tuple[Any, ...]]) -> list[Any]:
    """List the passes that TVM's s_tir pipeline would run under the current PassContext.

    TVM exports its list nowhere; running the pipeline on an empty module with ``Sequential``
    replaced reads it out.
    """
    import tvm

    captured: list[Any] = []
    own = threading.get_ident()

    def recorder(passes: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != own:
            # A thread that lowers meanwhile.
            return sequential(passes, *args, **kwargs)
        captured.extend(passes)
        return lambda mod: mod

    with _capture_lock:
        sequential = tvm.ir.transform.Sequential
        tvm.ir.transform.Sequential = recorder
        try:
            factory()[0](tvm.IRModule({}))
        finally:
            tvm.ir.transform.Sequential = sequential
    if not captured:
        raise ImportError(f"TVM {tvm_version()} no longer hands its s_tir passes to Sequential.")
    return captured


def stock_finalizers(factory: Callable[[], tuple[Any, ...]]) -> tuple[Any, Any]:
    """TVM's host and device finalisation factories of a pipeline."""
    _, host, device = factory()
    return host, device


def split_host_device(mod: Any) -> tuple[Any, dict[Any, Any]]:
    """Host functions of a module, and its device functions by target."""
    # tvm.tirx.build is a function that hides the module of the same name.
    from tvm.tirx.build import split_host_device_mods

    host, device = split_host_device_mods(mod)
    return host, device


def assemble(host: Any, device: dict[Any, Any]) -> Any:
    """Generate code of finalised host and device functions, as ``tvm.compile`` ends."""
    import tvm
    from tvm.runtime import Executable
    from tvm.tirx.build import tir_to_runtime

    kind = "llvm" if tvm.runtime.enabled("llvm") else "c"
    return Executable(tir_to_runtime(host, device, tvm.target.Target(kind)))


def read_json(text: str) -> Any:
    """What ``tvm.ir.save_json`` of this very TVM wrote.

    ``load_json`` first brings it to the latest schema by Python's ``json``: 1.76 s instead of 0.24
    for the 28 functions of a ResNet-50.
    """
    from tvm_ffi import serialization

    return serialization.from_json_graph_str(text)


def assert_statement(condition: Any, text: str) -> Any:
    """Create an ``assert`` that raises a ``ValueError``.

    TVM 0.27's Python class hands kind and condition to its constructor in the wrong order.
    """
    import tvm
    from tvm import tirx

    kind, message = (tvm.ir.expr.StringImm(part) for part in ("ValueError", text))
    return tirx.AssertStmt(condition, kind, [message])


def compile_cuda(source: str, **options: Any) -> Any:
    """Compile CUDA source as TVM does; ``options`` are those of ``tvm.support.nvcc``."""
    from tvm.support import nvcc

    return nvcc.compile_cuda(source, **options)


def ptxas_options() -> list[str]:
    """Options that TVM hands to ptxas, those of its environment variables among them."""
    from tvm.support import nvcc

    return list(nvcc._ptxas_option_flags())


#: What TVM's CUDA runtime needs of the driver's library in order to be loaded.
DRIVER_FUNCTIONS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)


def has_cuda_runtime() -> bool:
    """Whether TVM makes and loads CUDA modules of machine code, for which it wants a driver."""
    import tvm

    return tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None


def load_cuda_runtime(driver: str) -> bool:
    """Load TVM's CUDA runtime where TVM has not, with a stand-in for the driver's library.

    Only then does TVM build CUDA code without a driver; nothing can be run. ``driver`` is a library
    that calls itself ``libcuda.so.1`` and has :data:`DRIVER_FUNCTIONS`. Whether the runtime is
    there.
    """
    import ctypes
    from pathlib import Path

    import tvm

    runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    if has_cuda_runtime() or not runtime.exists():
        return has_cuda_runtime()
    try:
        for library in (driver, str(runtime)):
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return has_cuda_runtime()


def serve_rpc(
    serving: Callable[[Any, Any], None], allowed: Callable[[Sequence[str]], bool], **options: Any
) -> None:
    """Run the listening half of TVM's RPC server in this process, for good.

    TVM forks a process for each session. CUDA cannot be used in it where the server has initialised
    CUDA, as importing TVM 0.27 does where there is a GPU; and its server ends when a session does
    not end well. ``serving(socket, address)`` serves one session whose keys have been exchanged, to
    its end, if ``allowed`` lets in the words that came behind the key; the options are those of
    ``tvm.rpc.Server``.
    """
    from tvm.rpc import server

    def checked(sock: Any, address: Any, words: Sequence[str], *_: Any) -> None:
        if allowed(words):
            serving(sock, address)
        else:
            sock.close()

    server._parse_server_opt = list
    server._serving = checked
    for attempt in range(_LISTENERS):
        try:
            state = server.PopenRPCServerState(**options)
            break
        except OSError as error:
            # Two servers that start at once bind one port, and only one of them can listen there.
            if error.errno != errno.EADDRINUSE or attempt == _LISTENERS - 1:
                raise
    state.thread.join()


def open_session(host: str, port: int, key: str) -> socket.socket:
    """Connect to a server of TVM's RPC protocol that a tracker named, as far as it lets one in."""
    from tvm.rpc import base

    connection = socket.create_connection((host, port))
    try:
        name = f"client:{key}".encode()
        connection.sendall(struct.pack("<ii", base.RPC_MAGIC, len(name)) + name)
        (code,) = struct.unpack("<i", base.recvall(connection, 4))
        if code != base.RPC_CODE_SUCCESS:
            raise OSError(f"it answers with code {code}")
        base.recvall(connection, *struct.unpack("<i", base.recvall(connection, 4)))
    except OSError:
        connection.close()
        raise
    return connection


def initialise_search(context: Any) -> None:
    """Give the parts of a ``TuneContext`` their seeds anew, as TVM's task scheduler does first."""
    from tvm.s_tir.meta_schedule import _ffi_api

    _ffi_api.TuneContextInitialize(context)


@contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Keep ``TuneContext`` from importing TVM's tensor intrinsics, which takes 12 seconds.

    Whoever schedules with them has imported them; then nothing is kept from anyone.
    """
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


def remember_checks() -> None:
    """Let TVM remember what it works out anew for each callback of its walks, and answer as ever.

    That is a tenth of the time of whoever lowers many functions. What the types are of which the
    arguments of a schedule's methods must be is a fortieth.
    """
    from tvm.s_tir.schedule import _type_checker
    from tvm_ffi import structural

    _type_checker._dispatcher = _remembered(_type_checker._dispatcher)

    for name in ("_callback_type_to_type_index", "_callback_accepts_inplace_mode"):
        known = _callback_key if name.endswith("mode") else None
        setattr(structural, name, _remembered(getattr(structural, name), known))
    structural._normalize_callbacks = _plain_entries(structural._normalize_callbacks)


def look_through(node: Any, kinds: Sequence[type], look: Callable[[Any], Any]) -> None:
    """Show the nodes of some kinds, those that hold others last, as TVM's walk of them does."""
    structural = sys.modules["tvm_ffi.structural"]
    index = structural._callback_type_to_type_index
    entries = [(index(kind, api_name="structural_walk"), look) for kind in kinds]
    structural._ffi_api.StructuralWalk(node, entries, (), _POSTORDER)


def _plain_entries(work: Callable[..., Any]) -> Any:
    """What lists the callbacks of a walk, quick where these are such a list already."""
    if hasattr(work, "quick"):
        return work

    @wraps(work)
    def entries(callbacks: Any, **words: Any) -> Any:
        if type(callbacks) not in (list, tuple):
            return work(callbacks, **words)
        for entry in callbacks:
            if type(entry) is not tuple or len(entry) != 2 or type(entry[0]) is tuple:
                return work(callbacks, **words)
            if not callable(entry[1]):
                return work(callbacks, **words)
        return callbacks

    entries.quick = True  # type: ignore[attr-defined]
    return entries


def _remembered(work: Callable[..., Any], key: Callable[[Any], Any] | None = None) -> Any:
    """A function of one argument, and of words, that answers each question once."""
    if hasattr(work, "answers"):
        return work
    answers: dict[Any, Any] = {}

    @wraps(work)
    def asked(about: Any, **words: Any) -> Any:
        which = about if key is None else key(about)
        if which is None:
            return work(about, **words)
        if which not in answers:
            answers[which] = work(about, **words)
        return answers[which]

    asked.answers = answers  # type: ignore[attr-defined]
    return asked


def _callback_key(callback: Any) -> Any:
    """What decides how many arguments a function takes; None for what is no plain function."""
    code = getattr(callback, "__code__", None)
    if code is None or hasattr(callback, "__wrapped__"):
        return None
    return code, ismethod(callback), len(callback.__defaults__ or ())
