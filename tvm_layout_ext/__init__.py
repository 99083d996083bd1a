"""Memory layout for Apache TVM schedules, on the published wheel: ``import tvm_layout_ext as tlx``.

Kernels as functions of arrays (docs/calls.md)
    op(name)          a ready operator, to be called with arrays; operators() lists all
    kernel            decorator: a function that schedules a computation takes arrays
    autotune          decorator: searches a kernel's knobs at the first call
    benchmark         times either on this machine's GPU

Schedules (docs/which_primitive.md); primitives are methods of tvm.s_tir.Schedule, too
    te                TVM's te, with create_schedule and stages: s[B].storage_align(...)
    create_schedule   the same of operations
    assume_divisible  promises that a size or address is a multiple of a number
    versions_for_triton_stages
                      how many versions of a buffer Triton's num_stages are
    schedule, intrin, transform, pipeline
                      the primitives, tensor intrinsics, passes, and their order

From a schedule to code
    build(s)          a module for a machine with a GPU; cuda_source(s) its text
    lower(s)          flat loops; device_program(s): what the code generator is handed
    cuda_target       the target of an architecture; default_target: this machine's; target: both
    shared_buffers    bytes of each shared allocation; hardware: facts about GPUs

What a kernel does, without a GPU (docs/simulator.md)
    explain(s)        every access: width, sectors, conflicts; what limits, what to do
    simulate(s, ...)  outputs, counters and hazards on NumPy arrays
    assert_kernel     holds a kernel to limits, for tests
    explain_pipeline  draws what a pipelined loop has in flight; decisions: what passes chose

Tuning (docs/tuning.md)
    tune(...)         searches an operator or a function; knob declares what may vary
    tune_module       every function of a module
    apply_best, ApplyBest
                      compile with the best of a log; export writes a library of it

Models (docs/models.md)
    compile_torch     a module of PyTorch as a function of torch tensors
    load_torch        what compile_torch(...).save(path) wrote
    torch_backend     the same for torch.compile(net, backend="tvm_layout_ext")
    with_static_cache a language model of transformers, with the cache of its keys
    relax_pipeline    the pipeline for tvm.compile(mod, target, relax_pipeline=...)
    lower_relax       the functions that it schedules, for tune_module
    DefaultSchedule   a schedule for every function, without a search
    MixedPrecision    brings a module to 16 bits, as PyTorch's autocast
    NarrowShortcuts   stores shortcuts behind ToMixedPrecision in 16 bits

layout has Triton's layouts; errors what is raised, also ScheduleError and the others by name.
Importing registers passes, pipeline and primitives with TVM: install(), uninstall().
help(tlx.explain) tells of one name, README.md shows all of it at work.
"""

from __future__ import annotations

import sys as _sys

from . import _interrupt
from ._version import __version__ as __version__

# No ``__all__``: with it, help() prints the docstring of each name in place of the table above.
# The command line imports the rest when a command runs: --help does not wait for TVM.
if not _interrupt.is_command_line(_sys.orig_argv):
    from ._api import *  # noqa: F403


def __dir__() -> list[str]:
    from . import _api

    return sorted(_api.__all__)
