"""Hopper's asynchronous units: TMA, mbarriers, ``wgmma``, named barriers, registers."""
