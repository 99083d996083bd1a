"""What GPUs are and what a warp's memory requests cost them, as pure functions of addresses.

:mod:`.hardware` has the facts by architecture. A request is one instruction of one warp, a row of
32 byte addresses: :mod:`.requests` counts what it moves of global memory, :mod:`.banks` the
wavefronts that it takes in shared memory, :mod:`.copies` those of ``cp.async``, and :mod:`.counts`
sums them up. Nothing here knows of TVM, of layouts or of programs.
"""
