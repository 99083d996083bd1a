"""For functions with none of our annotations the CUDA is TVM's own, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.corpus import CORPUS
from tests.programs.emitted import cuda_text

_ROOT = Path(__file__).parents[2]
# The package is imported by the corpus itself for its target; `uninstall` must undo all of it.
_STOCK = """
import json
import tvm_layout_ext
tvm_layout_ext.uninstall()
from tests.pipeline.corpus import CORPUS
from tests.programs.emitted import cuda_text
print(json.dumps({name: cuda_text(make()) for name, make in CORPUS.items()}))
"""


@pytest.fixture(scope="module")
def stock_sources() -> dict[str, str]:
    out = subprocess.run(
        [sys.executable, "-c", _STOCK], capture_output=True, text=True, check=True, cwd=_ROOT
    )
    return json.loads(out.stdout.splitlines()[-1])


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= 40


@pytest.mark.matrix
@pytest.mark.parametrize("name", CORPUS)
def test_cuda_source_is_stock(name: str, stock_sources: dict[str, str]) -> None:
    assert cuda_text(CORPUS[name]()) == stock_sources[name]
