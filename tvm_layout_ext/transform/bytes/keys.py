"""Numbers of 32 bits that order a value and its index together: the value above the index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ...analysis.argmax import VALUE_BITS, WORD_BITS, room_of

#: What puts bytes of two words together. Byte n of its result is the one that its third argument
#: names by 4 bits: 0 to 3 of the first word, 4 to 7 of the second.
BYTE_PERM = "__byte_perm"
#: The low 8 or 16 bits of a value above the low bytes of an index.
_ABOVE = {8: 0x0654, 16: 0x1054}


@dataclass(frozen=True)
class Keys:
    """How values of a type and indices from ``least`` on are written as numbers of 32 bits."""

    dtype: str  #: Of values
    least: int  #: Index
    descends: bool  #: Whether lower indices have larger keys
    indices: str = "int32"  #: Their type

    @property
    def kind(self) -> str:
        """Type of the keys, which compare as the values do."""
        return "uint32" if self.dtype.startswith("uint") else "int32"

    @property
    def _bits(self) -> int:
        return WORD_BITS - VALUE_BITS[self.dtype]

    @property
    def room(self) -> int:
        """The largest index beyond the least."""
        return room_of(self.dtype)

    def _field(self, index: Any) -> Any:
        return self.room + self.least - index if self.descends else index - self.least

    def constant(self, value: Any, index: Any) -> Any:
        """The key of numbers."""
        bits = (int(value) << self._bits | self._field(int(index))) & (1 << WORD_BITS) - 1
        is_negative = self.kind == "int32" and bits >> WORD_BITS - 1
        return tirx.const(bits - (1 << WORD_BITS) if is_negative else bits, self.kind)

    def key(self, value: Any, index: Any) -> Any:
        """The key of expressions: one instruction, beside one for all values of an index."""
        own = f"uint{VALUE_BITS[self.dtype]}"
        word = tirx.Cast("uint32", value if str(value.ty) == own else tirx.Cast(own, value))
        field = tirx.Cast("uint32", self._field(index))
        above = tirx.const(_ABOVE[VALUE_BITS[self.dtype]], "uint32")
        joined = tirx.call_pure_extern("uint32", BYTE_PERM, word, field, above)
        return joined if self.kind == "uint32" else tirx.Cast("int32", joined)

    def value(self, key: Any) -> Any:
        """The value of a key."""
        return tirx.Cast(self.dtype, key >> tirx.const(self._bits, self.kind))

    def index(self, key: Any) -> Any:
        """The index of a key."""
        field = tirx.Cast(self.indices, key & tirx.const(self.room, self.kind))
        return self.room + self.least - field if self.descends else field + self.least
