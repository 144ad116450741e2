"""Makes the batches and samples that users get from the values that threads have written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from fastio.device import HostBatch
from fastio.engine import EngineSettings
from fastio.engine.ragged import LENGTH_SUFFIX, RaggedBatch
from fastio.feed.base import BatchInfo
from fastio.feed.fields import FieldTransforms
from fastio.feed.per_sample import ProcessSettings
from fastio.order.sampling import Sampling
from fastio.packed.pixels import pillow_image
from fastio.schema import Field, Image, Images, Scalar
from fastio.tensors.image_lists import OnImageLists, image_list_parts
from fastio.tensors.ragged import one_part, ragged_parts
from fastio.tensors.results import Results
from fastio.tensors.samples import tv_image
from fastio.tensors.trees import Finish, Step, Tail, image_tensors, map_leaves, pin, value_tensors
from fastio.transforms import Compiled, OnViews, Pointwise, ViewList
from fastio.views.base import view_of

ImageForm = Literal["array", "pillow", "tensor", "tv_tensor"]
_PYTHONS = (np.int64, np.float64, np.bool_)  # types that convert to Python without loss


@dataclass(frozen=True)
class SampleForm:
    """The form of `dataset[i]`.

    Attributes:
        images: "array" for uint8 (H, W, C); "pillow" for PIL images; "tensor" for tensors (C, H,
            W); "tv_tensor" for torchvision.tv_tensors.Image. None gives arrays, and tensors if the
            loader has transforms for them.
        python: whether numbers are Python's and arrays are lists, as in rows of the datasets
            package. Otherwise arrays, and numbers of types that Python lacks (int32, float32, ...),
            are NumPy's.
        tensors: the names of the fields whose values are tensors, as in a TensorDataset.
    """

    images: ImageForm | None = None
    python: bool = False
    tensors: frozenset[str] = frozenset()


def field_samples(
    raw: Any,
    part: Any,
    kind: Field,
    form: SampleForm,
    *,
    transformed: bool,
    channels_last: bool,
) -> list[Any]:
    """Returns one field of the samples of a batch.

    Args:
        raw: values of the field as the engine gives them: an array (n, ...), a list, or a
            `RaggedBatch`.
        part: the same values as tensors, after transforms.
        kind: type of the field.
        form: form of the samples.
        transformed: whether the loader has transforms for the field.
        channels_last: whether images in `raw` are (H, W, C); else they are (C, H, W).
    """
    if isinstance(kind, Images):
        if transformed:
            return list(part)
        turn = (0, 1, 2) if channels_last else (1, 2, 0)
        return [[np.ascontiguousarray(each.transpose(turn)) for each in row] for row in raw]
    if isinstance(kind, Image):
        images = form.images or ("tensor" if transformed else "array")
        if images in ("tensor", "tv_tensor"):
            return [tv_image(image) for image in part] if images == "tv_tensor" else list(part)
        rows = list(raw) if channels_last else [row.transpose(1, 2, 0) for row in raw]
        return [pillow_image(r) if images == "pillow" else np.ascontiguousarray(r) for r in rows]
    if transformed:
        return list(part)
    if isinstance(raw, RaggedBatch):
        raw = raw.rows()
    if form.python:
        if isinstance(raw, np.ndarray):
            return list(raw.tolist())
        return [row.tolist() if isinstance(row, np.ndarray) else row for row in raw]
    if isinstance(raw, np.ndarray) and raw.ndim == 1 and raw.dtype in _PYTHONS:
        return list(raw.tolist())
    return list(raw)


@dataclass(frozen=True)
class FeedSettings:
    """Settings of a feed whose batches are made by native threads.

    Attributes:
        engine: settings of the engine; its transforms are those of the feed.
        ahead: number of batches in work besides the one that is waited for.
        timeout_s: maximum time to wait for a batch in seconds; 0 for no limit.
        collate_fn: function that makes a batch from a list of samples.
        pinned: "slots" allocates slots in pinned memory and reuses them after `release`; "fresh"
            gives every batch pinned memory of its own; "no" pins nothing.
        read_ahead: whether a table's rows are read into the page cache before batches need them.
        let_go: whether rows that were read ahead are dropped from the page cache after use.
        samples: form of the samples that collate_fn receives.
        memory: memory for row groups in bytes. If None, `table_memory` chooses it, and a restored
            state may change the size of windows.
        processes: how processes are started that call functions for single samples.
    """

    engine: EngineSettings
    ahead: int
    timeout_s: float = 0.0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pinned: Literal["no", "slots", "fresh"] = "no"
    read_ahead: bool = False
    let_go: bool = False
    samples: SampleForm = field(default_factory=SampleForm)
    memory: int | None = None
    processes: ProcessSettings = field(default_factory=ProcessSettings)


class Delivery:
    """Makes host batches of the values of a batch, in the structure of the samples.

    Args:
        dataset: dataset of the feed.
        fields: names of the fields, in order.
        sampling: sampling, which says whether samples are batched.
        transforms: transforms of the fields.
        settings: settings of the feed.
        tails: last steps of fields of which the engine applies some; those of `transforms` for
            others.

    Attributes:
        steps: steps before collate_fn; None if there are none.
        finish: steps on the device; None if there are none.
        transform_s: time of collate_fn and the steps before it, in seconds.
    """

    def __init__(
        self,
        dataset: Any,
        fields: Sequence[str],
        sampling: Sampling,
        transforms: FieldTransforms,
        settings: FeedSettings,
        tails: Mapping[str, tuple[Pointwise, ...]],
    ) -> None:
        self.fields = tuple(fields)
        self._schema = dataset.schema
        self._view = view_of(dataset)
        self._batched = sampling.batched
        self._transformed = frozenset([*transforms.fields, *transforms.views])
        self._on_batches = {
            name for name, each in transforms.fields.items() if each.tail or each.batch
        }
        self._views, self._parts_of = transforms.views, transforms.parts_of
        self._settings = settings
        self.transform_s = 0.0
        steps: list[Step] = []
        numbers: set[int | str | None] = set()
        for place, name in enumerate(self.fields):
            keys: dict[str, int | str | None] = {"tuple": place, "dict": name, "single": None}
            key = keys[self._schema.structure]
            kind = self._schema.fields[name]
            if isinstance(kind, Scalar) and np.dtype(kind.dtype).type in _PYTHONS:
                numbers |= set() if name in self._transformed else {key}
            steps += self._steps_of(name, key, transforms, tails)
        whole: list[Step] = [(None, function) for function in transforms.whole]
        if settings.collate_fn is None:
            only: Step = None, partial(_only_sample, frozenset(numbers))
            # Without collate_fn, everything runs on the device. A single sample is taken out of its
            # batch of one before functions of whole batches, as DataLoader passes it on.
            steps, whole = [], [*steps, *([] if sampling.batched else [only]), *whole]
        self.steps = Finish(steps) if steps else None
        self.finish = Finish(whole) if whole else None

    def _steps_of(
        self,
        name: str,
        key: int | str | None,
        transforms: FieldTransforms,
        tails: Mapping[str, tuple[Pointwise, ...]],
    ) -> list[Step]:
        """Returns the steps of a field, whose key in a batch is `key`."""
        functions: list[list[Callable[[Any], Any]]] = []
        for part in transforms.parts_of(name):
            compiled = transforms.fields.get(part, Compiled())
            tail = tails.get(part, compiled.tail)
            functions.append([*([Tail(tail)] if tail else []), *compiled.batch])
        if not any(functions):
            return []
        if name in self._views:
            return [(key, OnViews(self._views[name], functions))]
        (own,) = functions
        if isinstance(self._schema.fields[name], Images):
            form = self._settings.engine.ragged.get(name, "list")
            return [(None, OnImageLists(key, form, own))]
        return [(key, function) for function in own]

    def host_batch(
        self,
        values: Mapping[str, Any],
        info: BatchInfo,
        release: Callable[[], None],
        samples: Callable[[Any], list[Any]] | None = None,
    ) -> HostBatch:
        """Returns a batch.

        Args:
            values: values of each field, as the threads have written them.
            info: information about the batch.
            release: function that returns the memory of the values. It is called after the batch
                was copied if slots are pinned; otherwise views of the memory keep it.
            samples: function that splits the tensors into samples; None for `samples`.
        """
        pinned = self._settings.pinned
        (data,) = self.of_one_length([self.tensors(values)], [values])
        if self._settings.collate_fn is None:
            data = self.with_bounds(data, values)
            if pinned == "slots":
                return HostBatch(data, info, release)
            return HostBatch(pin(data) if pinned == "fresh" else data, info)
        began_s = time.perf_counter()
        if self.steps is not None:
            data = self.steps(data)
        (values,) = self.of_one_length([values], [values])
        data = self.collated(self.samples(data, values) if samples is None else samples(data))
        self.transform_s += time.perf_counter() - began_s
        return HostBatch(pin(data) if pinned == "fresh" else data, info)

    def tensors(self, values: Mapping[str, Any]) -> Any:
        """Returns a batch as tensors in the structure of the samples, before any transform."""
        parts = [self._field_tensors(name, values) for name in self.fields]
        if self._schema.structure == "dict":
            return {name: value for found in parts for name, value in found.items()}
        return self._structured([one_part(found) for found in parts])

    def samples(self, data: Any, values: Mapping[str, Any]) -> list[Any]:
        """Splits a batch into samples for collate_fn, in the form that `dataset[i]` has."""
        columns = self.columns(data, values)
        rows = zip(*columns.values(), strict=True)
        if self._schema.structure == "dict":
            return [dict(zip(columns, row, strict=True)) for row in rows]
        return [self._structured(row) for row in rows]

    def columns(self, data: Any, values: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Splits a batch into the samples of each field.

        Clips of one length are followed by the lengths of their files if these are asked for: in a
        field of their own, or as pairs if samples are not dicts.
        """
        structure = self._schema.structure
        if structure != "dict":
            parts = data if structure == "tuple" else (data,)
            data = dict(zip(self.fields, parts, strict=True))
        found: dict[str, list[Any]] = {}
        for name in self.fields:
            field_values = values.get(name)
            if not (isinstance(field_values, RaggedBatch) and field_values.fixed):
                found[name] = self._field_samples(name, values, data[name])
                continue
            lengths = field_values.lengths.tolist()
            if structure == "dict":
                found |= {name: list(data[name]), name + LENGTH_SUFFIX: lengths}
            else:
                found[name] = list(zip(data[name][0], lengths, strict=True))
        return found

    def _field_samples(self, name: str, values: Mapping[str, Any], data: Any) -> list[Any]:
        """Splits one field of a batch, whose tensors are `data`, into samples."""
        views = self._views.get(name)
        if views is None:
            return self._samples(name, name, values[name], data)
        parts = zip(self._parts_of(name), views.flat(data), strict=True)
        columns = [self._samples(name, part, values[part], tensors) for part, tensors in parts]
        return [views.arranged(row) for row in zip(*columns, strict=True)]

    def _samples(self, name: str, part_name: str, values: Any, part: Any) -> list[Any]:
        form = self._settings.samples
        if isinstance(values, Results):
            # If steps on the batch followed the functions, `part` has the tensors that the steps
            # returned.
            changed = part_name in self._on_batches
            return list(part) if changed else values.samples(form.images == "pillow")
        return field_samples(
            values,
            part,
            self._schema.fields[name],
            form,
            transformed=name in self._transformed or name in form.tensors,
            channels_last=self._settings.engine.channels_last,
        )

    def collated(self, samples: list[Any]) -> Any:
        """Returns the batch that collate_fn makes from samples."""
        collate = self._settings.collate_fn
        assert collate is not None
        return collate(samples) if self._batched else collate(samples[0])

    def of_one_length(self, parts: Sequence[Any], values: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Pads the parts of a batch of documents to the longest of all parts.

        Args:
            parts: tensors in the structure of the samples, or arrays by field.
            values: the values from which each part was made.
        """
        return list(parts) if self._view is None else self._view.of_one_length(parts, values)

    def with_bounds(self, data: Any, arrays: Mapping[str, Any]) -> Any:
        """Adds the values that describe a batch of a view as a whole.

        Args:
            data: tensors in the structure of the samples.
            arrays: the same values, by field, in memory that can be read now.
        """
        found = {} if self._view is None else self._view.of_batch(arrays)
        if not found:
            return data
        kept = {name: part for name, part in data.items() if name not in found}
        new = {
            name: value_tensors(value) if isinstance(value, np.ndarray) else value
            for name, value in found.items()
            if value is not None
        }
        return {**kept, **new}

    def _field_tensors(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a field of a batch as tensors, in the structure of its views if it has any."""
        found = [self._tensors(name, values[part]) for part in self._parts_of(name)]
        views = self._views.get(name)
        return found[0] if views is None else {name: views.arranged([each[name] for each in found])}

    def _tensors(self, name: str, values: Any) -> dict[str, Any]:
        """Returns a field as tensors, followed by its sizes if the form has them."""
        if isinstance(self._schema.fields[name], Images):
            last = self._settings.engine.channels_last
            return image_list_parts(name, values, channels_last=last)
        if isinstance(values, RaggedBatch):
            return ragged_parts(name, values)
        if isinstance(values, Results):
            return {name: values.batch()}
        fresh = self._settings.pinned == "fresh"
        if not isinstance(self._schema.fields[name], Image):
            return {name: value_tensors(values, fresh=fresh)}
        last = self._settings.engine.channels_last
        return {name: image_tensors(values, channels_last=last, fresh=fresh)}

    def _structured(self, values: Sequence[Any]) -> Any:
        """Returns one value of each field in the structure of the samples."""
        if self._schema.structure == "dict":
            return dict(zip(self.fields, values, strict=True))
        return tuple(values) if self._schema.structure == "tuple" else values[0]


def _only_sample(numbers: frozenset[int | str | None], data: Any) -> Any:
    """Returns the sample of a batch of one.

    Args:
        numbers: keys of the parts that are Python numbers in samples, as DataLoader delivers them;
            on an accelerator they are tensors, since reading them would wait for it.
        data: the batch.
    """

    def first(key: int | str | None, part: Any) -> Any:
        if isinstance(part, (dict, tuple, ViewList)):  # views, or what a function returned
            return map_leaves(lambda leaf: leaf[0], part)
        one = part[0]
        return one.item() if key in numbers and one.device.type == "cpu" else one

    if isinstance(data, dict):
        return {name: first(name, part) for name, part in data.items()}
    if isinstance(data, tuple):
        return tuple(first(place, part) for place, part in enumerate(data))
    return first(None, data)
