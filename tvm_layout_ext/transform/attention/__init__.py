"""Attention in one kernel of warpgroups: two products by ``wgmma``, the softmax in registers."""
