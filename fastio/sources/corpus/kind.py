"""Token files as a kind of data: recognises, opens, describes, checks and packs them."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from fastio.errors import OptionError, PackError, SourceNotFound
from fastio.sources.base import (
    Findings,
    Found,
    Kind,
    Options,
    Progress,
    checked_files,
    described,
    files_findings,
)
from fastio.sources.corpus.dataset import FIELD, TokenFiles
from fastio.sources.corpus.formats import INDEX_SUFFIX, TOKENS_SUFFIX
from fastio.store import is_remote


def _sniff(source: Any, options: Options) -> list[str] | None:
    """Returns the paths of token files: of a path, a pattern, or a list of paths."""
    given = source if isinstance(source, (list, tuple)) else [source]
    if not given or not all(isinstance(each, (str, os.PathLike)) for each in given):
        return None
    paths = [os.fspath(each) for each in given]
    if not all(path.endswith((TOKENS_SUFFIX, INDEX_SUFFIX)) for path in paths):
        return None
    for path in paths:
        if is_remote(path):
            raise SourceNotFound(
                f"{path} is behind a URL, and token files must be local: copy it to this machine, "
                "or pack its text"
            )
    matches = [[path] if os.path.exists(path) else sorted(glob.glob(path)) for path in paths]
    found = [each for some in matches for each in some if os.path.isfile(each)]
    if not all(matches) or not found:
        return None
    # NAME.bin and NAME.idx are one file of tokens.
    return list(dict.fromkeys(os.path.splitext(path)[0] + TOKENS_SUFFIX for path in found))


def _open(found: Found) -> TokenFiles:
    options = found.options
    dtypes: Mapping[str, str] = options.dtypes or {}
    if set(dtypes) - {FIELD}:
        raise OptionError(f"dtypes of token files has one key, {FIELD!r}, got {sorted(dtypes)}")
    dtype = dtypes.get(FIELD)
    with suppress(TypeError, ValueError):  # an unknown type, which the files refuse
        dtype = None if dtype is None else np.dtype(dtype).name
    return TokenFiles(found.parts, dtype, options.separator)


def _describe(found: Found) -> dict[str, Any]:
    with _open(found) as dataset:
        return described(
            dataset,
            dataset.manifest.nbytes,
            format=", ".join(sorted({file.format for file in dataset.files})),
            files=len(dataset.files),
            tokens=sum(file.tokens for file in dataset.files),
        )


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    with _open(found) as dataset:
        checks = checked_files(dataset.verify(), "files", dataset.num_shards, progress)
        return files_findings(dataset.path, checks, len(dataset))


def _pack(found: Found, skip_damaged: bool) -> TokenFiles:
    dataset = found.source if isinstance(found.source, TokenFiles) else _open(found)
    whole = [
        each.path for each in dataset.files if each.format != "megatron" and each.separator is None
    ]
    if whole:
        raise PackError(
            f"{whole[0]} is one document, because no separator was given. fastio.TokenWindows can "
            "read it without packing. To pack it, name the token that ends each document: "
            "fastio.pack(fastio.open(path, separator=50256), ...)"
        )
    for check in dataset.verify():
        if check.problem:
            raise PackError(f"{check.name}: {check.problem}. Create the file again")
    return dataset


TOKEN_FILES = Kind(
    "tokens",
    "token files",
    (TokenFiles,),
    frozenset({"dtypes", "separator"}),
    _sniff,
    _open,
    _describe,
    _check,
    _pack,
)
