"""Artifacts of a small task whose candidates are written in C, so that they can misbehave."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi.libinfo

from tvm_layout_ext import te
from tvm_layout_ext.gpu import hardware
from tvm_layout_ext.tune.measure.builder.builder import INFO, LIBRARY
from tvm_layout_ext.tune.measure.builder.host_objects import HostObjects, compile_objects
from tvm_layout_ext.tune.space.operator import Operator, Tolerance, find_operator
from tvm_layout_ext.tune.space.task import Task

COUNT = 1024
#: Each is the body of ``run(const float* a, float* b)``, where b shall become 2 * a.
RIGHT = "for (int i = 0; i < 1024; ++i) b[i] = 2 * a[i];"
BODIES = {
    "right": RIGHT,
    "wrong": "for (int i = 0; i < 1024; ++i) b[i] = 3 * a[i];",
    "one wrong": RIGHT + "b[77] += 1;",
    "nan": RIGHT + "b[5] = 0.0f / 0.0f;",
    "unwritten": "for (int i = 0; i < 1000; ++i) b[i] = 2 * a[i];",
    "abort": "abort();",
    "segfault": "*(volatile int*)8 = 1;",
    "hang": "for (;;) usleep(1000);",
    "error": 'TVMFFIErrorSetRaisedFromCStr("RuntimeError", "CUDA: an illegal memory access was '
    'encountered"); return -1;',
    "memory": 'TVMFFIErrorSetRaisedFromCStr("RuntimeError", "CUDA: out of memory"); return -1;',
    "slow": RIGHT + "usleep(3000);",
    "sleepy": RIGHT + "usleep(80000);",
    "stray": RIGHT + "((float*)a)[3] += 1;",
}
_TEXT = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tvm/ffi/c_api.h>
static float* data(const TVMFFIAny* arg) {
  DLTensor* tensor = arg->type_index == kTVMFFIDLTensorPtr
      ? (DLTensor*)arg->v_ptr : (DLTensor*)((char*)arg->v_obj + sizeof(TVMFFIObject));
  return (float*)((char*)tensor->data + tensor->byte_offset);
}
static int run(const float* a, float* b) { BODY; return 0; }
int32_t __tvm_ffi_main(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return run(data(args), data(args + 1));
}
"""


def doubling_task() -> Task:
    """A task whose output is twice its input of 1024 float32."""
    operator: Operator = dataclasses.replace(
        find_operator("transpose"),
        name="double",
        compute=_compute,
        inputs=lambda shape, dtype, rng: [rng.random(shape, np.float32) + 1],
        reference=lambda a: 2 * a,
        tolerance=lambda shape, dtype: Tolerance(),
    )
    return Task(operator, (COUNT,), "float32", hardware.architecture("sm_90a"), seed=0)


def _compute(shape: Any, dtype: str) -> list[Any]:
    a = te.placeholder(shape, dtype, name="A")
    return [a, te.compute(shape, lambda i: a[i] * 2, name="B")]


class Shelf:
    """Builds artifacts by name of their body, once each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._objects: HostObjects = compile_objects(folder)

    def artifact(self, name: str, copy: int = 0) -> str:
        """Folder of a candidate that behaves as its name says."""
        folder = self.folder / f"{name} {copy}"
        if not folder.exists():
            folder.mkdir()
            _compile(_TEXT.replace("BODY", BODIES[name]), folder / LIBRARY, self._objects)
            (folder / INFO).write_text(json.dumps({"compiler": "cc"}))
        return str(folder)

    def artifacts(self, *names: str) -> list[str]:
        """A folder for each."""
        return [self.artifact(name, copy) for copy, name in enumerate(names)]


def _compile(source: str, library: Path, objects: HostObjects) -> None:
    include = tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", *(f"-I{path}" for path in include), "-x", "c", "-",
         "-x", "none", objects.rotation, "-o", str(library)],
        input=source, text=True, check=True, capture_output=True,
    )  # fmt: skip
