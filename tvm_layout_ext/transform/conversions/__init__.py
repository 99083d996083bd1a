"""Conversions between the layouts of register tiles: removed, hoisted, computed anew."""
