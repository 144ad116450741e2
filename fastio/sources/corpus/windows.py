"""What windows of tokens are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastio.errors import TransformError

Packing = Literal["contiguous", "best-fit"]


@dataclass(frozen=True)
class TokenWindows:
    """Cuts the tokens of documents into windows of `length` tokens, for training language models.

    Used as `Loader(path, transforms={"tokens": TokenWindows(2048)})`. The samples of the loader are
    then windows instead of documents, and a batch is a dict of tensors (N, length):

    | key | value |
    |---|---|
    | `inputs` | the tokens |
    | `targets` | the next token of each token; `ignore` where there is none |
    | `positions` | position of each token in its document's part of the window, from 0 |
    | `documents` | number of each token's document in the window, from 0; -1 for padding |
    | `cu_seqlens` | int32 (parts + 1,), see below |
    | `max_seqlen` | int, length of the longest part |

    `cu_seqlens` has the offset of each part of a document in the batch's N * length tokens, and
    that number at the end, as variable-length attention kernels expect. The padding of a window
    counts as a part.

    "contiguous" windows follow one another in the documents of a shard, which are read as one long
    text. Fewer than `stride` + `length` tokens at the end of a shard are left out. Of a torch
    Subset of documents, only its documents are read, and the last token of a document has the
    target `ignore`.

    "best-fit" windows hold whole documents; only documents longer than a window are cut (Ding et
    al., "Fewer truncations improve language modeling", ICML 2024). Shard by shard and longest
    first, each document goes into the fullest window that has room; the rest of a window is `pad`.
    Making the loader then reads the offsets of all documents.

    Args:
        length: number of tokens per window.
        stride: number of tokens from one window to the next; None for `length`. Contiguous only.
        packing: how windows are made from documents: "contiguous" or "best-fit".
        targets, positions, documents, cu_seqlens: whether the batch has these keys. With any of the
            last three, or "best-fit", the target of a document's last token is `ignore`.
        dtype: dtype of inputs, targets, positions and documents.
        pad: token after the last document of a window.
        ignore: target that the loss ignores; -100 is the value that torch's cross_entropy skips.

    Raises:
        TransformError: an argument is out of range.
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
