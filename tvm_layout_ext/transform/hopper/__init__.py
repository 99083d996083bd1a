"""Kernels of warpgroups: TMA fills shared memory, ``wgmma`` multiplies, mbarriers stand between."""
