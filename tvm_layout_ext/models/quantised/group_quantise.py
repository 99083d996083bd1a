"""Weights N x K as words of 32 bits and a scale for each group along K."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ...tune.measure.environment import cores

#: Neighbours along K that share a scale, as in MLC's ``q4f16_1``.
GROUP = 32
#: Bits of a word, which has the first weights in its low bits.
WORD = 32
#: Weights that a thread works on at once: with fewer Python takes longer than NumPy, and of more
#: what is made of them leaves the cache (16.0 s a billion by 1 << 15, 4.7 by 1 << 18, 11.0 by
#: 1 << 20, two cores). Threads at most, which take turns at Python.
_PART, _THREADS = 1 << 18, 16


def group_quantised(weight: np.ndarray, bits: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Round weights to the nearest of their group's numbers.

    A weight is ``(q - (1 << bits - 1)) * scale``. The one of the largest size in a group is
    ``q = 0``, and the scale has the other sign: so all numbers of 4 bits are used, and the error of
    normally distributed weights is 0.086 of their deviation, of 15 numbers around zero 0.097.

    Parameters
    ----------
    weight : numpy.ndarray
        N x K floats, in any order of memory; K is a multiple of a group.
    bits : int
        4 or 8.
    dtype : str
        The scales' type.

    Returns
    -------
    words, scales : numpy.ndarray
        ``uint32`` of N x (K * bits / 32), and ``dtype`` of N x (K / 32). Scales are not finite
        where a group is not, or ``dtype`` does not hold them; then words are any.
    """
    n, k = weight.shape
    words = np.empty((n, k * bits // WORD), "uint32")
    scales = np.empty((n, k // GROUP), np.dtype(dtype))
    rows = max(1, _PART // k)

    def part(begin: int) -> None:
        some = slice(begin, begin + rows)
        with np.errstate(all="ignore"):  # Of what is not finite the caller asks the scales.
            _quantise(_wide(weight[some]), bits, words[some], scales[some])

    with ThreadPoolExecutor(min(cores(), _THREADS)) as threads:
        [*threads.map(part, range(0, n, rows))]
    return words, scales


def _wide(weight: np.ndarray) -> np.ndarray:
    """Weights in ``float32``, row by row."""
    if str(weight.dtype) != "bfloat16":
        return np.ascontiguousarray(weight, "float32")
    # Its bits are the upper ones of a float, which NumPy moves faster than it converts.
    bits = np.ascontiguousarray(weight.view("uint16"))
    return (bits.astype("uint32") << 16).view("float32")


def _quantise(wide: np.ndarray, bits: int, words: Any, scales: Any) -> None:
    """Fill words and scales of some rows."""
    n, k = wide.shape
    half = 1 << bits - 1
    groups = wide.reshape(n, k // GROUP, GROUP)
    most, least = groups.max(-1), groups.min(-1)
    scales[:] = (np.where(most > -least, most, least) / -half).astype(scales.dtype)
    # Of the scales as they are stored.
    known = scales.astype("float32")
    if not np.isfinite(known).all():
        return
    each = np.divide(1, known, out=np.zeros_like(known), where=known != 0)
    steps = groups * each[..., None]
    np.rint(steps, steps)
    steps += half
    np.clip(steps, 0, 2 * half - 1, steps)
    counts = steps.astype("uint8").reshape(n, k)
    if bits == 4:
        counts = counts[:, ::2] | counts[:, 1::2] << 4
    words[:] = counts.view("<u4")
