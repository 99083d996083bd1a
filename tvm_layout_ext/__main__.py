"""``python -m tvm_layout_ext``."""

from .cli import main

main()
