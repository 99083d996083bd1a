"""One operator at one shape and element type: what a record is about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Workload:
    """An operator with its shape and element type."""

    operator: str
    shape: tuple[int, ...]
    dtype: str

    @cached_property
    def hash(self) -> str:
        """Sixteen hex digits that depend on nothing but the three fields."""
        text = json.dumps([self.operator, list(self.shape), self.dtype])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Fields of the record's ``workload`` entry; inverse of :meth:`from_json`."""
        return {
            "operator": self.operator,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "hash": self.hash,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """Read a record's ``workload`` entry; ValueError if its hash does not fit its fields."""
        workload = cls(str(data["operator"]), tuple(map(int, data["shape"])), str(data["dtype"]))
        if workload.hash != data["hash"]:
            raise ValueError(f"workload hash {data['hash']} is not {workload.hash}")
        return workload

    def __str__(self) -> str:
        # A function's own operator has no dimensions.
        shape = "x".join(map(str, self.shape))
        return " ".join(filter(None, (self.operator, shape, self.dtype)))
