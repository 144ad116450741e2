"""Computes which parts of documents make up each window of tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.packed.grouping import starts_of
from fastio.packed.layout import Segments


def contiguous_segments(starts: NDArray[np.int64], windows: int, step: int, span: int) -> Segments:
    """Returns the parts of documents in windows that follow one another.

    Args:
        starts: int64 (documents + 1,), the first token of each document, and the number of tokens.
        windows: number of windows.
        step: number of tokens from one window to the next.
        span: number of tokens of a window.
    """
    first_token = np.arange(windows, dtype=np.int64) * step
    filled = starts[np.append(np.diff(starts) > 0, True)]  # where documents begin that have tokens
    first = np.searchsorted(filled, first_token, side="right") - 1
    last = np.searchsorted(filled, first_token + span, side="left")  # one behind the last document
    counts = last - first
    begin = starts_of(counts)
    window = np.repeat(np.arange(windows), counts)
    document = np.arange(begin[-1]) - begin[window] + first[window]
    start = np.maximum(filled[document], first_token[window])
    end = np.minimum(filled[document + 1], first_token[window] + span)
    return begin, start, (end - start).astype(np.int32)


def best_fit_segments(starts: NDArray[np.int64], length: int) -> Segments:
    """Returns the parts of whole documents in windows, packed by best-fit decreasing.

    Documents longer than a window are cut into parts of its length and a rest. Windows, and the
    parts in each, are in the order of their first documents.

    Args:
        starts: int64 (documents + 1,), the first token of each document, and the number of tokens.
        length: number of tokens of a window.
    """
    sizes = np.diff(starts)
    parts = -(-sizes // length)
    document = np.repeat(np.arange(len(sizes)), parts)
    within = np.arange(len(document)) - np.repeat(np.cumsum(parts) - parts, parts)
    start = starts[:-1][document] + within * length
    sizes_of_parts = np.minimum(sizes[document] - within * length, length).astype(np.int32)
    window = _native.best_fit(sizes_of_parts, length)
    # The algorithm places the longest documents first, and numbers windows in the order in which it
    # opens them. They are numbered again, by their first documents.
    _, first_part, window = np.unique(window, return_index=True, return_inverse=True)
    rank = np.empty(len(first_part), np.int64)
    rank[np.argsort(first_part, kind="stable")] = np.arange(len(first_part))
    window = rank[window]
    order = np.argsort(window, kind="stable")
    begin = starts_of(np.bincount(window, minlength=len(first_part)))
    return begin, start[order], sizes_of_parts[order]
