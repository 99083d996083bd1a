"""Linear layers with weights of groups of 4 or 8 bits, as MLC's group quantisation writes them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx
from tvm.relax.frontend import nn
