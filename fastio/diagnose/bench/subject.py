"""The data that is measured: what it is, its loaders, the task of a model by name, and folders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fastio.diagnose.device import Interval
from fastio.diagnose.facts import DataFacts
from fastio.diagnose.imagesteps import ImageSteps
from fastio.diagnose.options import Options, check_applies
from fastio.diagnose.probes.data import facts_of, local_files
from fastio.diagnose.probes.rates import temporary
from fastio.errors import BenchError, OptionError, TrainError
from fastio.loader import Loader
from fastio.runtime.cores import available_cores
from fastio.runtime.properties import cached_property
from fastio.schema import Schema
from fastio.shown import without_secrets
from fastio.sources import open as open_data
from fastio.store import is_remote
from fastio.train import Options as TrainOptions
from fastio.train.kinds import LearnedTask, tabular_task, text_task
from fastio.train.models import ENCODER_SIZES, IMAGE_MODELS, TABULAR_MODELS
from fastio.train.options import TabularSettings, TextSettings
from fastio.train.parallel import Process
from fastio.transforms import OnBatch
from fastio.views.base import view_of
from fastio.views.windows import TokenWindows


class Timed:
    """A callable that records when it ran."""

    def __init__(self, function: Callable[[Any], Any], intervals: list[Interval]) -> None:
        self._function = function
        self._intervals = intervals

    def __call__(self, value: Any) -> Any:
        begin = time.perf_counter()
        try:
            return self._function(value)
        finally:
            self._intervals.append((begin, time.perf_counter()))

    def __repr__(self) -> str:
        return getattr(self._function, "__name__", repr(self._function))


TEXT_BATCH, TEXT_LENGTH = 32, 512  # as `fastio train text` has them


ModelKind = Literal["images", "tokens", "tables"]
_MODELS: dict[ModelKind, Mapping[str, Any]] = {
    "images": IMAGE_MODELS,
    "tokens": ENCODER_SIZES,
    "tables": TABULAR_MODELS,
}


def check_model(options: Options, kind: ModelKind) -> None:
    """Raises OptionError for a name that no model for a kind of data has."""
    if options.model_by_name and options.model not in _MODELS[kind]:
        raise OptionError(
            f"there is no model {options.model!r} for {kind}. Known models: "
            f"{', '.join(sorted(_MODELS[kind]))}; or give MODULE:FUNCTION, a function that "
            "returns a torch module"
        )


def task_of(options: Options, schema: Schema) -> LearnedTask | None:
    """Returns the task that a named model learns, from tokens or from a table.

    Args:
        options: options of the bench.
        schema: schema of the data.

    Returns:
        A task of fastio.train; None for images, or if no model was named.

    Raises:
        BenchError: there is no such model, or the data lacks the fields that it learns from.
    """
    if not options.model_by_name or schema.image_fields:
        return None
    kind: ModelKind = "tokens" if schema.token_fields else "tables"
    check_model(options, kind)
    if options.storage_options:
        raise OptionError(
            f"storage options cannot be used with a model for {kind} given by name: give "
            "MODULE:FUNCTION, or set them in the environment"
        )
    try:
        return _task(options, bool(schema.token_fields))
    except TrainError as error:
        raise BenchError(
            f"{error}. {options.model} uses the same defaults as `fastio train`; for anything "
            "else give MODULE:FUNCTION, a function that returns a torch module"
        ) from error


def _task(options: Options, text: bool) -> LearnedTask:
    how = TrainOptions(data=options.data, seed=options.seed)
    assert options.model is not None
    if text:
        length = options.length or TEXT_LENGTH
        return text_task(how, TextSettings(model=options.model, length=length))
    return tabular_task(how, TabularSettings(model="dlrm" if options.model == "dlrm" else "mlp"))


_TABLE_BATCH, _BATCH = 16_384, 256
_WINDOW = 1024  # tokens

Transforms = dict[str | None, list[Any]]  # by field; under None those of whole batches


@dataclass(frozen=True)
class Subject:
    """A dataset, and how it is loaded.

    Attributes:
        options: options of the bench.
        schema: schema of the dataset.
        data: facts of the dataset; its number of rows is that of an epoch.
        batch_size: samples per step.
        threads: number of threads of the loader.
        normalized: whether images are normalised float32 in the memory format of the model, and a
            last batch that is not full is left out; else images are uint8.
        device: device that the loader delivers to; None for host memory.
        cache: cache folder for remote data; None keeps nothing.
        task: the task of a named model on tokens or a table; None for images, or without one.
        transforming: intervals in which the user's own callables ran in the current run.
    """

    options: Options
    schema: Schema
    data: DataFacts
    batch_size: int
    threads: int
    normalized: bool = False
    device: torch.device | None = None
    cache: str | None = None
    task: LearnedTask | None = None
    transforming: list[Interval] = field(default_factory=list)

    @classmethod
    def of(cls, options: Options) -> Subject:
        """Opens the data once, to find out what it is.

        Raises:
            OptionError: an option does not apply to it.
            BenchError: the data is a torch dataset.
            FastioError: the data cannot be read.
        """
        with Loader(
            opened(options.data, options.storage_options), options.batch_size or 1
        ) as loader:
            dataset = loader.dataset
            if not hasattr(dataset, "schema"):
                raise BenchError(
                    f"bench takes a path, a URL or a fastio dataset, got {type(dataset)}: give "
                    "the folder or files that it reads"
                )
            schema = dataset.schema
            data = facts_of(options.data, dataset)
        check_applies(
            options,
            data.path,
            images=bool(schema.image_fields),
            tokens=bool(schema.token_fields),
            remote=data.remote,
        )
        if (options.baseline or options.epochs) and not schema.image_fields:
            raise OptionError(
                f"--baseline and --epochs need images, and {options.data} has only "
                f"{', '.join(schema.fields)}: leave these options out"
            )
        task = task_of(options, schema)
        preset = options.emulated
        default = _TABLE_BATCH if data.kind == "tables" or not schema.image_fields else _BATCH
        if schema.token_fields:
            default = _BATCH if task is None else TEXT_BATCH
        batch_size = options.batch_size or (preset.batch_size if preset else default)
        threads = options.threads or available_cores()
        # Users share reports, which must therefore contain no credentials.
        data = replace(data, path=without_secrets(data.path))
        found = cls(options, schema, data, batch_size, threads, task=task)
        if schema.token_fields:
            with found._loader(1, 1, plain=True) as loader:
                data = replace(data, rows=len(loader))
        return replace(found, data=data, batch_size=min(batch_size, data.rows))

    @property
    def cacheable(self) -> bool:
        """Whether a cache can hold the data: it is behind a URL and does not consist of tables."""
        return self.data.remote and (self.data.packed or self.data.kind != "tables")

    def files(self) -> list[Path]:
        """Returns the files of the data on this machine."""
        return local_files(self.options.data)

    def open(self, threads: int | None = None, plain: bool = False) -> Loader:
        """Returns a loader of the data.

        Args:
            threads: number of threads; None for the subject's.
            plain: leave out the user's own callables.
        """
        return self._loader(self.batch_size, self.threads if threads is None else threads, plain)

    def _loader(self, batch_size: int, threads: int, plain: bool) -> Loader:
        return Loader(
            self._opened(),
            batch_size,
            shuffle=True,
            drop_last=self.normalized,
            num_workers=threads,
            transforms=self.transforms(plain),
            device=self.device,
            seed=self.options.seed,
            distributed=False,
            fields=self._reading.get("fields"),
            channels_last=self.options.channels_last,
        )

    def _opened(self) -> Any:
        """Returns the dataset argument of a loader of the data: a view, if it has tokens."""
        data = opened(self.options.data, self.options.storage_options, self.cache)
        if self.task is not None:
            return self._reading["opener"](data)
        if not self.schema.token_fields:
            return data
        return TokenWindows(data, self.options.length or _WINDOW, field=self.schema.token_fields[0])

    @cached_property
    def _reading(self) -> dict[str, Any]:
        """Returns the loader arguments of the task."""
        if self.task is None:
            return {}
        return self.task.reading(self.options.data, Process(self.device or torch.device("cpu")))

    @cached_property
    def steps(self) -> ImageSteps:
        """The transforms of each image, as the model needs them."""
        return ImageSteps.of(self.options.pipeline, self.options.size, self.normalized)

    def transforms(self, plain: bool = False) -> Transforms:
        """Returns the transforms of the loader: image crops and flips, user callables."""
        given = () if plain else self.options.transforms
        own = [Timed(function, self.transforming) for function in given]
        if self.schema.image_fields:
            found: Transforms = {name: list(self.steps.native) for name in self.schema.image_fields}
            found[self.schema.image_fields[0]] += map(OnBatch, own)
            return found
        whole: Transforms = {None: list(own)} if own else {}
        if self.task is not None:
            needed = self._reading.get("transforms") or {}
            return {**{field: [step] for field, step in needed.items()}, **whole}
        return whole

    def described(self) -> tuple[str, ...]:
        """Returns the view of tokens and the transforms as text, each once."""
        data, found = self._opened(), self.transforms()
        steps = [data] if view_of(data) is not None else []
        steps += [step for given in found.values() for step in given]
        return tuple(dict.fromkeys(map(short, steps)))


def short(step: Any) -> str:
    """Returns a transform in a few words: "RandomResizedCrop(224)", "Normalize", "halved"."""
    if isinstance(step, Timed):
        return repr(step)
    if isinstance(step, OnBatch):  # tasks have no other function than that of the labels
        return repr(step.function) if isinstance(step.function, Timed) else "class numbers"
    known = (getattr(step, name, None) for name in ("size", "length", "max_length"))
    size = next((value for value in known if value), None)
    if isinstance(size, tuple) and len(set(size)) == 1:
        size = size[0]
    return type(step).__name__ + (f"({size})" if size else "")


def opened(data: Any, storage_options: Mapping[str, Any] | None, cache: str | None = None) -> Any:
    """Opens data at a URL with its storage options and cache; returns other data unchanged."""
    if not isinstance(data, (str, os.PathLike)) or not is_remote(data):
        return data
    return open_data(data, storage_options=storage_options or None, cache=cache)


@contextmanager
def work_folder(options: Options) -> Iterator[Path]:
    """Returns the folder for data that is made: `Options.work`, or a temporary one."""
    if options.work is None:
        with temporary() as folder:
            yield folder
        return
    Path(options.work).mkdir(parents=True, exist_ok=True)
    yield Path(options.work)
