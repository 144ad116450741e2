"""What windows of tokens are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastio.errors import TransformError

Packing = Literal["contiguous", "best-fit"]


@dataclass(frozen=True)
class TokenWindows:
    """Windows of `length` tokens of a dataset of documents, for training language models.

    Used as `Loader(path, transforms={"tokens": TokenWindows(2048)})`. The samples of the loader are
    then windows, not documents, and a batch is a dict of tensors (N, length):

    | key | value |
    |---|---|
    | `inputs` | the tokens |
    | `targets` | the token after each one; `ignore` where there is none |
    | `positions` | of each token in its document's part of the window, from 0 |
    | `documents` | the number of each token's document in the window, from 0; -1 for padding |
    | `cu_seqlens` | int32 (parts + 1,), see below |
    | `max_seqlen` | int, the longest part |

    `cu_seqlens` says where each part of a document begins in the batch's N * length tokens, and
    their number, as variable-length attention kernels take it. The padding of a window counts as a
    part.

    "contiguous" windows follow one another in each shard's documents, which are read as one long
    text; what is left at a shard's end, less than `stride` + `length` tokens, is left out. Of a
    torch Subset of documents, only these are read, and what follows a document's last token is no
    target (`ignore`).

    "best-fit" windows hold whole documents, so that none is cut but those longer than a window
    (Ding et al., "Fewer truncations improve language modeling", ICML 2024): each goes into the
    fullest window that has room, longest first, shard by shard; what stays empty is `pad`. Making
    the loader then reads where the documents of all shards begin.

    Args:
        length: tokens of a window.
        stride: from one window to the next, in tokens; None for `length`. Contiguous only.
        packing: how windows are made of documents.
        targets, positions, documents, cu_seqlens: whether they are wanted. With any of the last
            three, or "best-fit", the target of a document's last token is `ignore`.
        dtype: of inputs and targets, and of positions and documents.
        pad: the token behind the last document of a window.
        ignore: the target of what is not to be predicted: -100 is what torch's cross_entropy skips.

    Raises:
        TransformError: numbers that make no sense.
    """

    length: int
    stride: int | None = None
    packing: Packing = "contiguous"
    targets: bool = True
    positions: bool = False
    documents: bool = False
    cu_seqlens: bool = False
    dtype: Literal["int32", "int64"] = "int64"
    pad: int = 0
    ignore: int = -100

    def __post_init__(self) -> None:
        for name, value in (("length", self.length), ("stride", self.step)):
            if type(value) is not int or not 1 <= value <= 1 << 24:
                raise TransformError(f"TokenWindows({name}={value!r}): 1 to {1 << 24} is possible")
        if self.packing not in ("contiguous", "best-fit"):
            raise TransformError(f"packing is 'contiguous' or 'best-fit', not {self.packing!r}")
        if self.stride is not None and self.packing == "best-fit":
            raise TransformError("best-fit windows have no stride: each document comes once")
        if self.dtype not in ("int32", "int64"):
            raise TransformError(f"dtype is 'int32' or 'int64', not {self.dtype!r}")

    @property
    def by_document(self) -> bool:
        """Whether windows are known as parts of documents, not as tokens in a row alone."""
        marks = self.positions or self.documents or self.cu_seqlens
        return marks or self.packing == "best-fit"

    @property
    def step(self) -> int:
        """Tokens from one contiguous window to the next."""
        return self.length if self.stride is None else self.stride

    @property
    def span(self) -> int:
        """Tokens that a contiguous window is made of: the last is a target only."""
        return self.length + int(self.targets)
