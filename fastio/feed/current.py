"""The feed of a loader, which is made again where settings of the loader or its data change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from fastio.feed.arguments import check_shuffled
from fastio.feed.base import Feed
from fastio.feed.choose import make_feed
from fastio.feed.request import Request
from fastio.feed.tuning import ThreadTuner, make_tuner
from fastio.sources.hugging_face.sources import is_hugging_face
from fastio.sources.torch_dataset import Slow, WorkerSettings
from fastio.sources.torch_rows import torch_rows
from fastio.stats import Stats
from fastio.transforms import from_pipeline
from fastio.views.subsets import inside


class CurrentFeed:
    """The feed for the settings that a loader and its dataset have now.

    Iterators that are open when settings change continue with the feed that they have.

    Args:
        request: arguments of the loader.

    Attributes:
        feed: the feed.
        tuner: tuner of the number of its threads; None if the number is given or cannot change.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.tuner: ThreadTuner | None = None
        self._made_for: tuple[WorkerSettings, Any] | None = None
        self._replaced: list[Feed] = []  # which open iterators may still read
        with ExitStack() as failed:
            self.feed = make_feed(request)
            failed.callback(self.close)
            if request.sampling.shuffle:
                check_shuffled(self.feed.dataset, self.feed.epoch_rows)
            self.feed.warn()
            failed.pop_all()

    def begin(self, workers: WorkerSettings) -> None:
        """Records the settings that the feed was made for, and starts tuning if that is asked."""
        self._made_for = workers, _dataset_settings(self._request.dataset)
        self.tuner = make_tuner(self.feed) if self._request.auto_threads else None

    def follow(self, workers: WorkerSettings, in_use: bool) -> Stats | None:
        """Makes another feed if settings have changed.

        Args:
            workers: settings of the loader now.
            in_use: whether iterators are open.

        Returns:
            The counters of the feed before; None if nothing has changed.
        """
        dataset = self._request.dataset
        # This runs for each new iterator, so lists are compared without a copy, and copied only
        # after a change.
        if (workers, _dataset_settings(dataset, lambda given: given)) == self._made_for:
            return None
        request = replace(self._request, workers=workers)
        before, feed = self.feed, make_feed(request)
        feed.warn()
        self.feed, self._request = feed, request
        self._made_for = workers, _dataset_settings(dataset)
        stats = before.stats()
        if in_use:
            self._replaced.append(before)
        else:
            before.close()
        if self.tuner is not None:
            self.tuner = make_tuner(feed)
        return stats

    def close(self) -> None:
        """Closes all feeds, and a dataset that was opened for the feed. May be called again."""
        for feed in (*self._replaced, self.feed):
            feed.close()
        given = self._request.dataset
        if self.feed.dataset is not given and is_hugging_face(given):
            self.feed.dataset.close()

    def __getstate__(self) -> dict[str, Any]:
        workers = None if self._made_for is None else self._made_for[0]
        tunes = self.tuner is not None
        return {**self.__dict__, "_replaced": [], "_made_for": workers, "tuner": tunes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Some settings of a dataset differ between processes.
        self._made_for = state["_made_for"], _dataset_settings(self._request.dataset)
        self.tuner = make_tuner(self.feed) if state["tuner"] else None


def _dataset_settings(dataset: Any, keep: Callable[[list[Any]], list[Any]] = list) -> Any:
    """Returns the settings of a dataset that may change after a loader is made and affect reading.

    The results of two calls (transforms, places of arrays, formats, ...) compare equal if nothing
    changed in between.

    Args:
        dataset: the dataset.
        keep: how lists that the user may change in place become part of the result: `list` copies
            them; a function that returns its argument is enough if the result is compared at once.
    """
    indices, parts = inside(dataset, keep)
    if len(parts) > 1 or parts[0] is not dataset:
        return indices, [_dataset_settings(part, keep) for part in parts]
    if is_hugging_face(dataset):
        return getattr(dataset, "format", None)
    rows = torch_rows(dataset)
    if isinstance(rows, Slow):
        return rows
    pipeline = rows.transform is None or from_pipeline(rows.transform)
    return rows.settings, pipeline, rows.target_transform
