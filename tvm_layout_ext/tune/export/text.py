"""The C, CUDA and Python text of an exported kernel."""

from __future__ import annotations

from .launches import HostPlan, KernelBuffer, KernelLaunch

_HEADER = """\
/* {name}: made by tvm_layout_ext {version} from a schedule for {arch}.
 *
 * {about}
 *
 * Arguments, in order; each points to device memory, aligned to 16 bytes, the last index running
 * fastest and without gaps:
{listed}
 *
 * stream is a cudaStream_t, or NULL for the default stream. The call returns when everything is
 * launched; {workspace}
 * The result is 0, or the cudaError_t of what failed; {name}_error gives its text.
 * The library needs the CUDA driver and nothing else.
 */
#ifndef {guard}
#define {guard}

#define {upper}_ARCH "{arch}"

#ifdef __cplusplus
extern "C" {{
#endif

int {name}({parameters}, void *stream);
const char *{name}_error(int code);

#ifdef __cplusplus
}}
#endif

#endif
"""

_CUDA = """\
{renames}
{kernels}
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char *{name}_error(int code) {{
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}}

static cudaError_t launch(const void *kernel, dim3 grid, dim3 block, dim3 cluster,
                          void **arguments, size_t shared, cudaStream_t stream) {{
  if (shared > 0) {{
    cudaError_t code = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (code != cudaSuccess) return code;
  }}
#if CUDART_VERSION >= 11080
  if (cluster.x * cluster.y * cluster.z > 1) {{
    cudaLaunchAttribute attribute = {{}};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster.x;
    attribute.val.clusterDim.y = cluster.y;
    attribute.val.clusterDim.z = cluster.z;
    cudaLaunchConfig_t config = {{}};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelExC(&config, kernel, arguments);
  }}
#endif
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}}

EXPORTED int {name}({parameters}, void *stream_) {{
  cudaStream_t stream = static_cast<cudaStream_t>(stream_);
  cudaError_t code = cudaSuccess;
  const void *given[] = {{{given}}};
  for (const void *one : given) {{
    if (one == NULL || reinterpret_cast<uintptr_t>(one) % 16 != 0) return cudaErrorInvalidValue;
  }}
{body}
  return code;
}}
"""

_LAUNCH = """\
  if (code == cudaSuccess) {{
    void *arguments[] = {{{pointers}}};
    code = launch(reinterpret_cast<const void *>({kernel}), dim3({grid}), dim3({block}),
                  dim3({cluster}), arguments, {shared}, stream);
  }}
"""

_LOADER = '''\
"""Calls {name} on tensors of any library that speaks DLPack; without TVM."""

import ctypes
import pathlib

_ARGUMENTS = {arguments}
_PATH = pathlib.Path(__file__).resolve().with_name("lib{name}.so")
if not _PATH.exists():
    raise ImportError("{name}.py needs " + _PATH.name + " beside it, in " + str(_PATH.parent) + ".")
_LIBRARY = ctypes.CDLL(str(_PATH))
_LIBRARY.{name}.argtypes = [ctypes.c_void_p] * {count}
_LIBRARY.{name}_error.restype = ctypes.c_char_p
_CUDA = 2
_CODES = {{0: "int", 1: "uint", 2: "float", 4: "bfloat"}}
# Types that no number of bits is added to (dlpack.h 1.1).
_WHOLE = {{6: "bool", 10: "float8_e4m3fn", 12: "float8_e5m2"}}


class _Tensor(ctypes.Structure):
    """DLTensor, as dlpack.h declares it."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


def describe(tensor):
    """Pointer, device type, element type, shape and strides (None if compact) of a tensor."""
    capsule = tensor.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    one = _Tensor.from_address(get(capsule, b"dltensor"))
    shape = tuple(one.shape[i] for i in range(one.ndim))
    strides = tuple(one.strides[i] for i in range(one.ndim)) if one.strides else None
    kind = _CODES.get(one.code, "type%d_" % one.code)
    dtype = _WHOLE.get(one.code, "%s%d" % (kind, one.bits))
    return (one.data or 0) + one.byte_offset, one.device_type, dtype, shape, strides


def _pointer(tensor, name, dtype, shape):
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError("%s must be a tensor that speaks DLPack, not %r" % (name, tensor))
    pointer, device, got, extents, strides = describe(tensor)
    compact, step = [], 1
    for extent in reversed(extents):
        compact.insert(0, step)
        step *= extent
    if got != dtype or extents != shape:
        raise ValueError("%s must be %s %s, not %s %s" % (name, dtype, shape, got, extents))
    if strides is not None and any(s != c for s, c, n in zip(strides, compact, extents) if n > 1):
        raise ValueError("%s must be contiguous; its strides are %s" % (name, strides))
    if device != _CUDA:
        raise ValueError("%s must be on a CUDA device, not on device type %d" % (name, device))
    return pointer


def {name}(*tensors, stream=0):
    """Launch on {names}, the last of which is written.

    The stream is its address, e.g. torch.cuda.current_stream().cuda_stream.
    """
    if len(tensors) != len(_ARGUMENTS):
        raise TypeError("{name} takes %d tensors, not %d" % (len(_ARGUMENTS), len(tensors)))
    pointers = [_pointer(t, *a) for t, a in zip(tensors, _ARGUMENTS)]
    code = _LIBRARY.{name}(*pointers, stream)
    if code:
        raise RuntimeError("{name}: " + _LIBRARY.{name}_error(code).decode())
'''


def _parameters(plan: HostPlan) -> str:
    last = plan.arguments[-1].name
    kinds = ("void *" if one.name == last else "const void *" for one in plan.arguments)
    return ", ".join(f"{kind}{one.name}" for kind, one in zip(kinds, plan.arguments, strict=True))


def header_text(name: str, plan: HostPlan, arch: str, version: str, about: str) -> str:
    """The C header: what to pass, in which order."""
    last = plan.arguments[-1].name
    listed = "\n".join(
        f" *   {one.name}: {one.dtype}[{']['.join(map(str, one.shape))}]"
        f"{', written' if one.name == last else ''}"
        for one in plan.arguments
    )
    size = sum(one.bytes for one in plan.workspace)
    workspace = (
        f"{size:,} bytes of workspace are taken from the stream's memory pool.\n *"
        if size
        else "no memory is allocated.\n *"
    )
    upper = name.upper()
    return _HEADER.format(
        name=name, version=version, arch=arch, about=about, listed=listed, workspace=workspace,
        guard=f"{upper}_H_", upper=upper, parameters=_parameters(plan),
    )  # fmt: skip


def cuda_text(name: str, plan: HostPlan, kernels: str) -> str:
    """The kernels, and the host function that launches them."""
    body = "".join(_allocation(one) for one in plan.workspace)
    body += "".join(_launch(one) for one in plan.launches)
    body += "".join(f"  if ({w.name}) cudaFreeAsync({w.name}, stream);\n" for w in plan.workspace)
    own = dict.fromkeys(one.kernel for one in plan.launches)
    # Two libraries in one process must not share their kernels' names.
    renames = "".join(f"#define {kernel} {name}_{kernel}\n" for kernel in own)
    return _CUDA.format(
        renames=renames, kernels=kernels, name=name, body=body.rstrip("\n"),
        parameters=_parameters(plan), given=", ".join(one.name for one in plan.arguments),
    )  # fmt: skip


def _allocation(one: KernelBuffer) -> str:
    return (
        f"  void *{one.name} = NULL;\n"
        f"  if (code == cudaSuccess) code = cudaMallocAsync(&{one.name}, {one.bytes}, stream);\n"
    )


def _launch(one: KernelLaunch) -> str:
    grid, block, cluster = (
        ", ".join(map(str, extents)) for extents in (one.grid, one.block, one.cluster)
    )
    return _LAUNCH.format(
        pointers=", ".join(f"(void *)&{p}" for p in one.pointers),
        kernel=one.kernel, grid=grid, block=block, cluster=cluster,
        shared=one.shared_bytes,
    )  # fmt: skip


def loader_text(name: str, plan: HostPlan) -> str:
    """A Python module that checks its tensors and calls the library."""
    arguments = [(one.name, one.dtype, one.shape) for one in plan.arguments]
    names = ", ".join(one.name for one in plan.arguments)
    return _LOADER.format(name=name, names=names, arguments=arguments, count=len(arguments) + 1)
