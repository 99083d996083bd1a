"""Names of TVM's operators stand in one file, and TVM knows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm

import tvm_layout_ext
from tvm_layout_ext.ir import ops

_NAMES = {key: name for key, name in vars(ops).items() if re.match(r"[A-Z]", key)}
#: Attributes of functions, tags of launches, options, and beginnings of names.
_NO_OPERATORS = re.compile(
    "IS_SCHEDULED|NOALIAS|REDUCE_SCOPE|VOLATILE|KERNEL_LAUNCH|LAUNCH_BOUNDS|USE_|DISABLE_|.*_PREFIX$"
)


def test_no_other_file_has_a_name_of_an_operator() -> None:
    package = Path(tvm_layout_ext.__file__).parent
    others = {path for path in package.rglob("*.py") if path != Path(str(ops.__file__))}
    literal = re.compile(r"""["'](tirx|prim)\.[a-z]""")
    assert [path for path in sorted(others) if literal.search(path.read_text())] == []


@pytest.mark.parametrize("key", [key for key in _NAMES if not _NO_OPERATORS.match(key)])
def test_tvm_has_the_operator(key: str) -> None:
    names = _NAMES[key] if isinstance(_NAMES[key], tuple) else (_NAMES[key],)
    assert [tvm.ir.Op.get(name).name for name in names] == list(names)
