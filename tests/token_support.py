"""Views of tokens for tests: options that are given once, for any dataset."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from fastio import TokenPad, TokenWindows


@dataclass(frozen=True)
class Windows:
    """Options of `TokenWindows`; called with a dataset, returns the view."""

    length: int
    stride: int | None = None
    packing: Literal["contiguous", "best-fit"] = "contiguous"
    targets: bool = True
    positions: bool = False
    documents: bool = False
    cu_seqlens: bool = False
    dtype: Literal["int32", "int64"] = "int64"
    pad: int = 0
    ignore: int = -100

    def __call__(self, dataset: Any) -> TokenWindows:
        return TokenWindows(dataset, **asdict(self))


@dataclass(frozen=True)
class Padding:
    """Options of `TokenPad`; called with a dataset, returns the view."""

    max_length: int
    multiple_of: int = 8
    pad: int = 0
    pool: int = 0
    dtype: Literal["int32", "int64"] = "int64"

    def __call__(self, dataset: Any) -> TokenPad:
        return TokenPad(dataset, **asdict(self))

    def length(self, longest: int) -> int:
        """The length of a batch whose longest document has `longest` tokens."""
        rounded = -(-max(1, longest) // self.multiple_of) * self.multiple_of
        return min(rounded, self.max_length)
