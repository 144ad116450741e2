"""Which path a dataset takes: the native one wherever it gives what DataLoader would give."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fastio.cache import Cache
from fastio.cores import available_cores
from fastio.dataset import Dataset
from fastio.device import Device, has_pinned_memory
from fastio.engine import OnError
from fastio.errors import TransformError
from fastio.feed import Feed, FieldTransforms, NativeFeed, NativeSettings, as_list
from fastio.formats import (
    AnyDataset,
    Loadable,
    Remote,
    TarDataset,
    TokenDataset,
    TokenWindows,
    is_tars,
    open_any,
)
from fastio.formats.torch_dataset import WorkerSettings, image_files
from fastio.residency import place_table
from fastio.sampling import Ranks, Sampling
from fastio.staging import staged
from fastio.transforms import compile, from_torchvision
from fastio.workers import TorchFeed


@dataclass(frozen=True)
class Request:
    """What `Loader` was asked for; the attributes are its arguments, in its meaning.

    `own_order`: shuffle by (seed, epoch), also where there is a generator.
    """

    dataset: Any
    sampling: Sampling
    workers: WorkerSettings
    transforms: Any
    device: Device | None
    on_error: OnError
    fields: tuple[str, ...] | None
    channels_last: bool
    seed: int
    own_order: bool
    ranks: Ranks
    storage_options: Mapping[str, Any] | None = None
    cache: Cache | str | os.PathLike[str] | None = None
    resident: bool | None = None


def make_feed(request: Request) -> Feed:
    """The feed for a request: native, or else torch's with the reason.

    Raises:
        SourceNotFound, ManifestInvalid: the path holds no dataset that can be read.
        TransformError: the transforms do not fit.
        TypeError, ValueError: the dataset or the arguments are not possible.
    """
    source = _native_source(request)
    if isinstance(source, str):
        return _torch_feed(request, source)
    opened, known = source
    dataset, request = _windows(opened, request)
    if isinstance(dataset, TarDataset) and dataset is not request.dataset and request.fields:
        request = replace(request, fields=tuple(dataset.schema.fields))  # seg_png for "seg.png"
    transforms = FieldTransforms.parse(request.transforms, dataset.schema, known)
    settings = _native_settings(request)
    if not isinstance(dataset, Remote):
        sampling = request.sampling
        packed = dataset.dataset if isinstance(dataset, TokenDataset) else dataset
        if isinstance(packed, Dataset) and not packed.schema.image_fields:
            sampling, resident = place_table(packed, sampling, request.resident)
            settings = replace(settings, resident=resident)
        return NativeFeed(dataset, sampling, transforms, settings, request.seed)
    sampling, stager = staged(dataset, request.sampling, request.fields)
    return NativeFeed(dataset, sampling, transforms, settings, request.seed, stager)


def _native_source(request: Request) -> tuple[AnyDataset, list[Any]] | str:
    """A dataset of the native path and the transforms that it came with; or why there is none."""
    dataset, options, cache = request.dataset, request.storage_options, request.cache
    if isinstance(dataset, (str, os.PathLike)) or is_tars(dataset):
        opened = open_any(dataset, request.fields, storage_options=options, cache=cache)
        return opened, []
    if options is not None or cache is not None:
        raise ValueError(
            "storage_options and cache are for a dataset that is given as a URL; fastio.open takes "
            "them too"
        )
    if isinstance(dataset, AnyDataset):
        return dataset, []
    files = image_files(dataset)
    if isinstance(files, str):
        return files
    known = [] if files.transform is None else from_torchvision(files.transform)
    if known is None:
        return f"the transform is not known natively: {_one_line(files.transform)}"
    try:
        compile(known)
    except TransformError as error:
        return f"the transforms cannot be done natively: {error}"
    return files.as_dataset(), known


def _windows(dataset: AnyDataset, request: Request) -> tuple[Loadable, Request]:
    """Windows of the dataset's tokens where transforms ask for some, and what else they ask for."""
    given = request.transforms
    if isinstance(given, TokenWindows):
        given = {_only_tokens(dataset): given}
    if not isinstance(given, Mapping):
        return dataset, request
    wanted = {
        name: step
        for name, steps in given.items()
        for step in as_list(steps)
        if isinstance(step, TokenWindows)
    }
    if not wanted:
        return dataset, request
    field, windows = next(iter(wanted.items()))
    if len(wanted) > 1 or len(as_list(given[field])) > 1 or not isinstance(dataset, Dataset):
        raise TransformError(
            "TokenWindows is the only transform of one field of tokens of a packed dataset; "
            "callables that follow it go under the key None"
        )
    if request.fields not in (None, (field,)):
        raise TransformError(f"windows of {field!r} have no other fields: leave out fields=")
    if windows.cu_seqlens and not request.sampling.batched:
        raise TransformError("cu_seqlens are of batches, and batch_size=None asks for samples")
    if request.workers.collate_fn is not None:
        raise TransformError("windows come as tensors of a batch: there is nothing to collate")
    rest = {name: steps for name, steps in given.items() if name != field}
    view = TokenDataset(dataset, field, windows)
    return view, replace(request, transforms=rest or None, fields=None)


def _only_tokens(dataset: AnyDataset) -> str:
    fields = dataset.schema.token_fields
    if len(fields) != 1:
        raise TransformError(
            f"TokenWindows alone is for the only field of tokens, and there are {len(fields)}: "
            "give a dict, transforms={field: TokenWindows(...)}"
        )
    return fields[0]


def _one_line(value: object) -> str:
    return " ".join(repr(value).split())


def _torch_feed(request: Request, reason: str) -> TorchFeed:
    if request.fields is not None or request.on_error != "raise":
        raise ValueError(f"fields and on_error are of the native path, and here {reason}")
    workers = request.workers
    if request.device is not None and request.device.type == "cuda":
        workers = replace(workers, pin_memory=True)  # or copies would wait for one another
    return TorchFeed(
        request.dataset,
        request.sampling,
        workers,
        transforms=request.transforms,
        reason=reason,
        torch_order=not request.own_order and request.ranks.world_size == 1,
    )


def _native_settings(request: Request) -> NativeSettings:
    workers = request.workers
    threads = workers.num_workers or available_cores()
    # Two rows a thread, however small the batches.
    busy = -(-2 * threads // (request.sampling.batch_size or 1))
    on_gpu = request.device is not None and request.device.type == "cuda"
    pinned: Literal["no", "slots", "fresh"] = "slots" if on_gpu else "no"
    if workers.pin_memory and not on_gpu and has_pinned_memory():
        pinned = "fresh"
    return NativeSettings(
        threads=threads,
        ahead=max(workers.prefetch_factor or 2, busy),
        timeout_s=workers.timeout,
        on_error=request.on_error,
        channels_last=request.channels_last,
        fields=request.fields,
        collate_fn=workers.collate_fn,
        on_cpu=request.device is None or request.device.type == "cpu",
        pinned=pinned,
    )
