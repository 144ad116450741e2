"""Chooses the path of a dataset: native wherever that gives the same result as DataLoader."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastio.device import has_pinned_memory
from fastio.engine import EngineSettings
from fastio.engine.ragged import Forms
from fastio.errors import SchemaError, TransformError
from fastio.feed.arguments import cache_for, refuse_cache
from fastio.feed.base import Feed
from fastio.feed.delivery import FeedSettings, SampleForm
from fastio.feed.fields import FieldTransforms, as_list
from fastio.feed.mixed import ConcatFeed, MixFeed
from fastio.feed.native import NativeFeed
from fastio.feed.per_sample import ProcessSettings
from fastio.feed.request import Request
from fastio.feed.row_groups import TableFeed, table_memory
from fastio.feed.seeds import drawn_by
from fastio.feed.tuning import most_threads
from fastio.feed.workers import TorchFeed
from fastio.order.sampling import Sampling
from fastio.packed.rows import Rows
from fastio.runtime.cores import available_cores
from fastio.shown import without_addresses
from fastio.sources import open as open_data
from fastio.sources.hugging_face.sources import (
    has_transform,
    is_dataset_object,
    is_hugging_face,
    unlike_python,
)
from fastio.sources.registry import as_rows
from fastio.sources.torch_dataset import (
    Slow,
    image_files,
    is_iterable_dataset,
    single_sample,
)
from fastio.sources.torch_rows import torch_rows
from fastio.stage import staged
from fastio.stage.shuffling import by_groups, is_beyond_memory, place_table, reads_directly
from fastio.store import is_remote
from fastio.tensors.trees import pinned_memory
from fastio.transforms import PerSample, Pipeline, from_pipeline, sample_form
from fastio.views.base import view_of
from fastio.views.mixing import Mix, mix_of
from fastio.views.subsets import is_concat, parts_of

_OWN_TRANSFORM = Slow(
    "the dataset has a transform of its own (set_transform)",
    "Remove it with dataset.reset_format(), and pass fastio's transforms "
    "(transforms={'image': [...]}) or a collate_fn to the loader.",
)

_STREAM = Slow(
    "a datasets.IterableDataset gives its samples one after the other",
    "Load it without streaming=True, or keep it with save_to_disk and give the directory.",
)
_OF_TENSORS = Slow(
    "transforms of arrays that are not known to hold images are called with whole batches",
    "For transforms of each image, name the tensors that hold images: "
    "fastio.Loader(fastio.open(dataset, images=[0]), transforms=...).",
)
_BY_BATCHES = Slow(
    "with batch_size=None, a sampler may give several rows of an array at once",
    "Pass batch_size, and leave out the sampler or pass one that gives single rows.",
)
_EMPTY = Slow("it has no samples", remedy="")
_FOR_COLLATE = (
    "Leave out collate_fn (fastio.TokenPad pads rows of tokens), or open the dataset with the "
    "columns and the values for nulls that you want, fastio.open(dataset, columns=[...], "
    "nulls={...}): collate_fn then gets fastio's values."
)


def make_feed(request: Request) -> Feed:
    """Returns the feed for a request: native, or else torch's with the reason and the remedy.

    Raises:
        SourceNotFound, ManifestInvalid: the path holds no dataset that can be read.
        TransformError: the transforms do not fit.
        TypeError, ValueError: the dataset or the arguments are not possible.
    """
    _check_no_view(request.transforms)
    # Subset and ConcatDataset are resolved first, because the datasets in them are read natively.
    parts, picked = parts_of(request.dataset)
    if len(parts) > 1 and isinstance(image_files(request.dataset), Slow):
        return _concat_feed(parts, picked, request)
    if len(parts) == 1 and (picked is not None or is_concat(request.dataset)):
        request = _of_subset(parts[0], picked, request)
    mix = mix_of(request.dataset)
    if mix is not None:
        return _mix_feed(mix, request)
    opened = _opened(request)
    if isinstance(opened, Slow):
        return _torch_feed(request, opened)
    request, samples = opened
    grouped = _grouped_feed(request, samples)
    return _rows_feed(request, samples) if grouped is None else grouped


def _opened(request: Request) -> tuple[Request, SampleForm] | Slow:
    """Returns the request with an opened dataset, and the form of its samples.

    Returns:
        Why it is not read natively, if it belongs to the datasets package and has values that only
        the package gives, or none; else the dataset of the request as it is, or opened by fastio.
    """
    dataset = request.dataset
    if not is_hugging_face(dataset):
        return request, SampleForm()
    if is_iterable_dataset(dataset):
        return _STREAM
    if has_transform(dataset):
        return _OWN_TRANSFORM
    if is_dataset_object(dataset) and not len(dataset):
        return _EMPTY
    unlike = _unlike_python(request)
    slow = unlike or _python_rows([dataset], request)
    if slow is not None and _asks_nothing(request):
        return slow
    samples = SampleForm(None, is_dataset_object(dataset) and unlike is None)
    return replace(request, dataset=open_data(dataset)), samples


def _grouped_feed(request: Request, samples: SampleForm) -> Feed | None:
    """Returns a feed that decodes whole row groups; None if the dataset has none."""
    rows = as_rows(request.dataset)
    if rows is None or rows.row_grouping == "no":
        return None
    # The schema of a table may have to be fetched, with columns that nobody wants.
    if request.cache is not None and not rows.schema.pictured:
        refuse_cache(request.cache, request.by_rows)
    feed = _row_group_feed(request, rows, samples)
    if feed is None and rows.row_grouping == "always":
        return _table_rows_feed(rows, request)
    return feed


def _rows_feed(request: Request, samples: SampleForm) -> Feed:
    """Returns a feed that reads single rows, or torch's if the dataset has no native form."""
    source = _native_source(request)
    if isinstance(source, Slow):
        return _torch_feed(request, source)
    opened, known, form = source
    request = replace(request, sampling=drawn_by(request.workers.generator, request.sampling))
    request = _of_view(opened, request)
    transforms = FieldTransforms.parse(request.transforms, opened.schema, known)
    settings = _native_settings(request)
    if form is not None:
        given = request.transforms  # of the only image field, or by field
        own = bool(as_list(given.get("image") if isinstance(given, Mapping) else given))
        samples = replace(form, images=None) if own else form
        # With batch_size=None, DataLoader converts arrays to tensors and does not collate.
        alone = not request.sampling.batched and settings.collate_fn is None
        if alone and (form.tensors or not (own or request.device)):
            settings = replace(settings, collate_fn=single_sample)
    engine = replace(settings.engine, cache=cache_for(opened, request.cache, request.by_rows))
    settings = replace(settings, samples=samples, engine=engine)
    settings.engine.ragged.check(opened.schema, request.fields, transforms.audio)
    if opened.remote_part is not None:
        sampling, stager = staged(opened, request.sampling, request.fields)
        return NativeFeed(opened, sampling, transforms, settings, stager)
    sampling, settings = _placed(opened, request.sampling, settings)
    return NativeFeed(opened, sampling, transforms, settings)


def _placed(
    dataset: Rows, sampling: Sampling, settings: FeedSettings
) -> tuple[Sampling, FeedSettings]:
    """Returns sampling and settings for a local dataset.

    They say whether images are read directly, and whether a table is copied to memory or read
    ahead.
    """
    packed = dataset.packed
    if packed is None or packed.schema.pictured:
        engine = replace(settings.engine, direct=reads_directly(dataset, sampling))
        return sampling, replace(settings, engine=engine)
    sampling, resident = place_table(packed, sampling, packed.resident)
    large = not resident and is_beyond_memory(packed)
    ahead = not resident and (not large or sampling.mode != "shuffle")
    engine = replace(settings.engine, resident=resident)
    return sampling, replace(settings, engine=engine, read_ahead=ahead, let_go=large)


def _of_subset(inner: Any, picked: npt.NDArray[np.int64] | None, request: Request) -> Request:
    """Returns a request for the picked rows of a dataset, if the native path supports it.

    Args:
        inner: the only dataset in a Subset or a ConcatDataset.
        picked: int64 (n,), or None for all rows.
        request: the request for the Subset or ConcatDataset.
    """
    found = torch_rows(inner) if as_rows(inner) is None else None
    if not isinstance(found, Slow):
        sampling = replace(request.sampling, picked=picked)
        return replace(request, dataset=inner, sampling=sampling, found=found)
    if is_hugging_face(inner) and not isinstance(inner, (str, os.PathLike)):
        # The indices are kept in memory; otherwise the datasets package writes them to its cache on
        # the disk.
        rows = inner if picked is None else inner.select(picked, keep_in_memory=True)
        return replace(request, dataset=rows)
    return request


def _unlike_python(request: Request) -> Slow | None:
    """Returns why collate_fn would not get the values of `dataset[i]`; None if it gets them."""
    if request.workers.collate_fn is None or not is_dataset_object(request.dataset):
        return None
    given = request.transforms
    named = [name for name in given if name is not None] if isinstance(given, Mapping) else []
    if not named and as_list(given):
        features = request.dataset.features.items()
        named = [name for name, kind in features if type(kind).__name__ == "Image"]
    reason = unlike_python(request.dataset, named)
    return None if reason is None else Slow(reason, _FOR_COLLATE)


def _python_rows(parts: Sequence[Any], request: Request) -> Slow | None:
    """Returns why rows of the datasets package are not read natively for collate_fn, or None.

    Their Python objects take as long to make on the native path, and longer in small batches.
    """
    rows = any(is_dataset_object(part) for part in parts)
    only_collates = request.workers.collate_fn is not None and _asks_nothing(request)
    if not rows or not only_collates or request.by_rows or as_list(request.transforms):
        return None
    return Slow("collate_fn gets rows of the datasets package as Python objects", _FOR_COLLATE)


def _asks_nothing(request: Request) -> bool:
    """Returns whether the request uses no option that only the native path has."""
    return request.fields is None and request.ragged is None and request.on_error == "raise"


def _table_rows_feed(dataset: Rows, request: Request) -> NativeFeed:
    """Returns a feed for picked rows of tables, or for tables among other datasets.

    It reads row groups as rows need them. Shuffled rows come in windows of as many row groups as
    fit in memory.
    """
    memory = table_memory(dataset.memory)
    sampling = drawn_by(request.workers.generator, request.sampling)
    groups = max(1, memory // max(1, dataset.group_bytes))
    dataset.keep(memory)
    sampling = by_groups(sampling, dataset.group_bounds.tolist(), groups)
    transforms = FieldTransforms.parse(request.transforms, dataset.schema)
    settings = _native_settings(request)
    settings.engine.ragged.check(dataset.schema, request.fields)
    return NativeFeed(dataset, sampling, transforms, settings)


def _row_group_feed(request: Request, dataset: Rows, samples: SampleForm) -> TableFeed | None:
    """Returns a feed that reads whole row groups; None if single rows are read."""
    sampling, tables = request.sampling, dataset.row_grouping == "always"
    if request.by_rows or sampling.picked is not None or sampling.repeat > 1:
        return None
    if request.on_error != "raise" and tables:
        raise ValueError(
            f"on_error={request.on_error!r} applies to single samples, and these tables are "
            "read by row groups: leave it out, or pack them (fastio pack)"
        )
    any_order = not sampling.ours or sampling.order == "shuffle" or request.on_error != "raise"
    if request.workers.collate_fn is not None and dataset.memory is None and samples.python:
        # Python's part takes as long for either, and single rows come in DataLoader's order.
        drawn = drawn_by(request.workers.generator, sampling)
        any_order = any_order or drawn.permutes(len(dataset))
    if any_order and not tables:
        return None
    how = _native_settings(request)
    memory = table_memory(dataset.memory)
    # Nulls are for collate_fn, which gets samples.
    keep_nulls = request.workers.collate_fn is not None
    groups = dataset.row_groups(request.fields, memory // 2, how.engine.threads, keep_nulls)
    if groups is None:
        return None
    transforms = FieldTransforms.parse(request.transforms, groups.schema)
    if any(compiled.per_sample for compiled in transforms.fields.values()):
        return None  # functions are called for single rows
    if transforms.audio and not tables:
        return None  # sounds are decoded one by one
    settings = replace(
        how,
        ahead=max(2, request.workers.prefetch_factor or 0),
        memory=None if dataset.memory is None else memory,
        samples=samples,
    )
    how.engine.ragged.check(groups.schema)
    if transforms.audio:
        raise TransformError(
            "AudioDecode supports packed datasets, folders and tars: pack the tables"
        )
    return TableFeed(groups, sampling, transforms, settings)


def _native_source(
    request: Request,
) -> tuple[Rows, Mapping[str, list[Any]], SampleForm | None] | Slow:
    """Returns a request's dataset as rows of the native path, or why that is not possible.

    Returns:
        The rows, the transforms that the dataset already has, by field, and the form of its samples
        if it is a torch dataset or has tensors; or a `Slow`.
    """
    rows = as_rows(request.dataset)
    if rows is not None:
        tensors = rows.tensor_fields
        return rows, {}, SampleForm(tensors=tensors) if tensors else None
    found = request.found or torch_rows(request.dataset)
    if isinstance(found, Slow):
        return found
    if not found.count:
        return _EMPTY
    if found.tensors:
        given = request.transforms
        if set(given) - {None} if isinstance(given, Mapping) else as_list(given):
            return _OF_TENSORS
        if not request.sampling.batched and request.sampling.sampler is not None:
            return _BY_BATCHES
        opened = found.open()
        return opened, {}, SampleForm(tensors=opened.tensor_fields)
    known = {} if found.transform is None else {"image": from_pipeline(found.transform)}
    if found.target_transform is not None:
        known["label"] = [PerSample(Pipeline((found.target_transform,)))]
    processes = ProcessSettings(request.workers.multiprocessing_context)
    if not processes.can_send([step for steps in known.values() for step in steps]):
        return Slow(
            f"worker processes cannot be sent the transform {_one_line(found.transform)}",
            "Define its functions at the top of a module, or pass multiprocessing_context='fork'.",
        )
    return found.open(), known, SampleForm(sample_form(found.transform))


def _of_view(dataset: Rows, request: Request) -> Request:
    """Returns the request for a dataset, with the batches of similar lengths that a view asks for.

    Raises:
        TransformError: the dataset is a view, which does not support the request.
    """
    view = view_of(dataset)
    if view is None:
        return request
    sampling, collates = request.sampling, request.workers.collate_fn is not None
    if sampling.repeat > 1:
        raise TransformError(
            f"repeat={sampling.repeat} is for samples with random augmentations: documents and "
            "windows of tokens have none"
        )
    view.check(request.fields, batched=sampling.batched, collates=collates)
    if sampling.mode == "shuffle" and sampling.ours:
        sampling = replace(sampling, buckets=view.buckets())
    return replace(request, sampling=sampling)


def _check_no_view(transforms: Any) -> None:
    """Raises TransformError if a view is given as a transform."""
    given = transforms.values() if isinstance(transforms, Mapping) else [transforms]
    views = [step for steps in given for step in as_list(steps) if view_of(step) is not None]
    if views:
        name = type(views[0]).__name__
        raise TransformError(
            f"{name} is a dataset, not a transform: fastio.Loader(fastio.{name}(dataset, ...), "
            "batch_size)"
        )


def _mix_feed(mix: Mix, request: Request) -> MixFeed:
    feeds: list[Feed] = []
    with ExitStack() as failed:
        for source in mix.sources:
            opened = source
            if isinstance(source, (str, os.PathLike)):
                opened = open_data(source, cache=request.cache if is_remote(source) else None)
                failed.callback(opened.close)
            feed = _feed_of_part(opened, request)
            failed.callback(feed.close)
            if feed.chain is None:
                raise TransformError(
                    f"a mix needs datasets that fastio reads natively, and {_one_line(source)} "
                    "is not one: pack it"
                )
            feeds.append(feed)
        mixed = MixFeed(mix, feeds, request.sampling, _joined_forms(feeds[0], request))
        failed.pop_all()
    return mixed


def _concat_feed(
    parts: Sequence[Any], picked: npt.NDArray[np.int64] | None, request: Request
) -> ConcatFeed | TorchFeed:
    """Returns the feed of concatenated datasets, of which some rows may be picked."""
    slow = _python_rows(parts, request)
    if slow is not None:
        return _torch_feed(request, slow)
    feeds: list[NativeFeed] = []
    sampling = drawn_by(request.workers.generator, request.sampling)
    with ExitStack() as failed:
        for part in parts:
            feed = _feed_of_part(part, replace(request, sampling=sampling))
            failed.callback(feed.close)
            if feed.chain is None:
                reason = feed.reason or "its rows are read by row groups"
                slow = Slow(f"the ConcatDataset has a {type(part).__qualname__}, and {reason}")
                return _torch_feed(request, slow)
            feeds += feed.leaves
        forms, sampling = _joined_forms(feeds[0], request), replace(sampling, picked=picked)
        try:
            joined = ConcatFeed(request.dataset, feeds, sampling, forms)
        except SchemaError as error:
            slow = Slow(f"the parts of the ConcatDataset differ: {error}")
            return _torch_feed(request, slow)
        failed.pop_all()
    return joined


def _feed_of_part(part: Any, request: Request) -> Feed:
    """Returns the feed of one of several datasets that share an order."""
    # The generator draws the order of all parts together. Rows that differ in size are delivered as
    # lists, which `Joiner` converts to the requested form.
    workers = replace(request.workers, generator=None)
    return make_feed(replace(request, dataset=part, workers=workers, ragged=None, by_rows=True))


def _joined_forms(first: Feed, request: Request) -> Forms:
    """Returns the forms of the fields that several datasets have in common."""
    leaf = first.leaves[0]
    forms = _forms(replace(request, dataset=leaf.dataset))
    forms.check(leaf.dataset.schema, leaf.fields, leaf.transforms.audio)
    return forms


def _one_line(value: object) -> str:
    return without_addresses(" ".join(repr(value).split()))


def _torch_feed(request: Request, slow: Slow) -> TorchFeed:
    refuse_cache(request.cache, request.by_rows, slow.reason)
    if request.fields is not None or request.on_error != "raise" or request.ragged is not None:
        raise ValueError(
            f"fields, on_error and ragged need the native path, but {slow.reason}. {slow.remedy}"
        )
    workers = request.workers
    if request.device is not None and request.device.type == "cuda":
        workers = replace(workers, pin_memory=True)  # or copies would wait for one another
    return TorchFeed(
        request.dataset, request.sampling, workers, transforms=request.transforms, slow=slow
    )


def _native_settings(request: Request) -> FeedSettings:
    workers = request.workers
    threads = most = workers.num_workers or available_cores()
    if request.auto_threads:
        threads, most = available_cores(), most_threads()
    # At least two rows per thread, even if batches are small.
    busy = -(-2 * most // (request.sampling.batch_size or 1))
    on_gpu = request.device is not None and request.device.type == "cuda"
    on_cpu = request.device is None or request.device.type == "cpu"
    pinned: Literal["no", "slots", "fresh"] = "slots" if on_gpu else "no"
    if workers.pin_memory and not on_gpu and has_pinned_memory():
        pinned = "fresh"
    collate_fn = workers.collate_fn
    engine = EngineSettings(
        fields=request.fields,
        threads=threads,
        on_error=request.on_error,
        channels_last=request.channels_last,
        normalize_on_cpu=on_cpu or collate_fn is not None,
        allocate=None if pinned == "no" else pinned_memory,
        recycle=pinned != "fresh",
        ragged=_forms(request),
    )
    ahead = max(2 if workers.prefetch_factor is None else workers.prefetch_factor, busy)
    processes = ProcessSettings(workers.multiprocessing_context, workers.worker_init_fn)
    return FeedSettings(engine, ahead, workers.timeout, collate_fn, pinned, processes=processes)


def _forms(request: Request) -> Forms:
    """Returns the forms of fields whose rows differ in size; single samples are always rows."""
    rows = as_rows(request.dataset)
    grouped = rows is not None and rows.row_grouping == "always" and not request.by_rows
    forms = Forms.of("padded" if grouped and request.ragged is None else request.ragged)
    alone = request.workers.collate_fn is not None or not request.sampling.batched
    return Forms("list") if alone else forms
