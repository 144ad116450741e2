"""Windows of tokens: the rows of this view are pieces of one length of a dataset's documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.errors import TransformError
from fastio.schema import Array, Schema
from fastio.shown import without_secrets
from fastio.views.base import View, part_of
from fastio.views.documents import Documents
from fastio.views.window_layout import Packing, WindowLayout, WindowOptions


class TokenWindows(View):
    """A dataset whose rows are windows of `length` tokens, for training language models.

        windows = fastio.TokenWindows("tokens/", 2048)
        loader = fastio.Loader(windows, batch_size=8, shuffle=True)

    A batch is a dict of tensors (N, length):

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
    counts as a part. Only a `Loader` delivers `cu_seqlens` and `max_seqlen`, which describe a whole
    batch.

    "contiguous" windows follow one another in the documents of a shard, which are read as one long
    text. Tokens at the end of a shard that do not fill a window are left out. Of a torch
    Subset of documents, only its documents are read, and the last token of a document has the
    target `ignore`.

    "best-fit" windows hold whole documents; only documents longer than a window are cut (Ding et
    al., "Fewer truncations improve language modeling", ICML 2024). Shard by shard and longest
    first, each document goes into the fullest window that has room; the rest of a window is `pad`.
    Making the windows then reads the offsets of all documents.

    The object can be used from several threads.

    Args:
        dataset: packed documents, or token files: a path or URL, which is opened; an open dataset;
            or a torch Subset or ConcatDataset of open datasets.
        length: number of tokens per window.
        field: name of the field of tokens; None for the only one.
        stride: number of tokens from one window to the next; None for `length`. Contiguous only.
        packing: how windows are made from documents: "contiguous" or "best-fit".
        targets, positions, documents, cu_seqlens: whether the batch has these keys. With any of the
            last three, or "best-fit", the target of a document's last token is `ignore`.
        dtype: dtype of inputs, targets, positions and documents. int32 is for tokens below 2**31;
            larger ones are not checked for, and become negative.
        pad: token after the last document of a window.
        ignore: target that the loss ignores; -100 is the value that torch's cross_entropy skips.

    Attributes:
        dataset: what the windows are made of, as given or opened.
        field: name of the field of tokens.
        length: number of tokens per window.
        schema: schema of a window.

    Raises:
        TransformError: an option is out of range, the dataset is not packed, or it has too few
            tokens for a window.
        SchemaError: the field does not exist or does not hold tokens.
        SourceNotFound, ShardCorrupt, StoreError: the dataset, or a shard of it, cannot be read.
    """

    def __init__(
        self,
        dataset: Any,
        length: int = 0,
        *,
        field: str | None = None,
        stride: int | None = None,
        packing: Packing = "contiguous",
        targets: bool = True,
        positions: bool = False,
        documents: bool = False,
        cu_seqlens: bool = False,
        dtype: Literal["int32", "int64"] = "int64",
        pad: int = 0,
        ignore: int = -100,
    ) -> None:
        found = Documents.of(dataset, "TokenWindows")
        try:
            marks = targets, positions, documents, cu_seqlens
            self._options = WindowOptions(length, stride, packing, *marks, dtype, pad, ignore)
            self.field, _ = found.field(field, "TokenWindows")
            self._set_parts(found)
        except BaseException:
            found.close()
            raise
        self._documents = found
        self.dataset, self.path, self.length = found.source, found.path, length
        self.schema = Schema({name: Array(dtype, (length,)) for name in self._options.fields})

    def _set_parts(self, found: Documents) -> None:
        how = self._options
        if len(found.parts) == 1:
            layout = WindowLayout(found.parts[0], self.field, how, found.picked)
            self._layout: WindowLayout | None = layout
            self.parts: tuple[TokenWindows, ...] = (self,)
            self._rows = int(layout.first_row[-1])
            return
        options = {"field": self.field, **asdict(how)}
        self._layout = None
        self.parts = tuple(TokenWindows(part, **options) for part in found.split())
        self._rows = sum(map(len, self.parts))

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of a window."""
        return tuple(name for name in self.schema.fields if name not in self._hidden)

    @property
    def _hidden(self) -> dict[str, None]:
        """Fields of the schema from which `cu_seqlens` is made, and which are not delivered."""
        how = self._options
        return {} if how.documents or not how.cu_seqlens else {"documents": None}

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the documents and how they are cut."""
        if self._layout is None:
            about = f"concatenated {[part.fingerprint for part in self.parts]}".encode()
        else:
            packed = self._layout.dataset
            about = f"{packed.fingerprint} {self.field} {self._options}".encode()
            about += self._layout.identity
        return xxhash.xxh3_64_hexdigest(about)

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return (
            f"TokenWindows({without_secrets(self.path)!r}, {self.length}, field={self.field!r}, "
            f"rows={len(self)})"
        )

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """Returns one window, a dict of arrays (length,), without `cu_seqlens` and `max_seqlen`.

        Raises:
            IndexError: there is no such window.
            SourceNotFound, ShardCorrupt, StoreError: the shard of the window cannot be read.
        """
        window = self._window(self._row(index))
        return {name: window[name] for name in self.fields}

    def _window(self, row: int) -> dict[str, NDArray[Any]]:
        part, row = part_of(self, row)
        return part._one_layout.window(row)  # type: ignore[no-any-return]

    @property
    def _one_layout(self) -> WindowLayout:
        """The layout of a view of one packed dataset."""
        if self._layout is None:
            raise TypeError(f"{self!r} consists of several datasets: use its parts")
        return self._layout

    def shard_bounds(self) -> NDArray[np.int64]:
        """Returns the first window of each shard and the number of windows, int64 (shards + 1,)."""
        return self._one_layout.shard_bounds()

    def fixed_columns(self, fields: Sequence[str]) -> WindowLayout:
        """Returns the layout of the windows, which has all fields."""
        return self._one_layout

    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Any]:
        """Returns the values of fields, (n, length) each, for rows int64 (n,) in any order."""
        windows = [self._window(row) for row in np.asarray(rows).tolist()]
        empty = np.empty((0, self.length), self._options.dtype)
        return {
            name: np.stack([window[name] for window in windows]) if windows else empty
            for name in fields
        }

    def sample_name(self, row: int) -> str:
        """Returns how messages name a window: its shard's file name and its number there."""
        part, row = part_of(self, row)
        layout = part._one_layout
        number, local = layout.locate(row)
        return f"{layout.dataset.manifest.name(layout.shard(number))} window {local}"

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"field": self.field, **asdict(self._options)}
        return partial(TokenWindows, **options), (self.dataset,)

    # What a loader asks a view; see `views.base.View`.

    def check(self, fields: Sequence[str] | None, *, batched: bool, collates: bool) -> None:
        """Checks the arguments of a loader; see `View`."""
        if fields is not None and set(fields) != set(self.schema.fields):
            raise TransformError(
                f"windows are delivered with all of their fields, {', '.join(self.fields)}: leave "
                "out fields=, or make windows of other fields (targets=False, documents=True, ...)"
            )
        if self._options.cu_seqlens and not batched:
            raise TransformError(
                "cu_seqlens cannot be used with batch_size=None: it describes a whole batch"
            )
        if collates:
            raise TransformError(
                "collate_fn cannot be used with windows, which are delivered as batches: pass "
                "functions of the batch as transforms={None: function}"
            )

    def of_batch(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `cu_seqlens` and `max_seqlen` of a batch, if they are wanted; see `View`."""
        if not self._options.cu_seqlens:
            return {}
        documents = np.asarray(arrays["documents"])
        # The first token of each window begins a part, even if the window before ended in a
        # document with the same number.
        begins = np.ones(documents.shape, np.bool_)
        np.not_equal(documents[:, 1:], documents[:, :-1], out=begins[:, 1:])
        bounds = np.append(np.flatnonzero(begins), documents.size).astype(np.int32)
        longest = int(np.diff(bounds).max(initial=0))
        return {**self._hidden, "cu_seqlens": bounds, "max_seqlen": longest}
