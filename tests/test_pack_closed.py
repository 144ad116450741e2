"""A dataset that is closed while it is packed ends the pack: its rows are not bad samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets as hf
import numpy as np
import pytest
from torch.utils.data import ConcatDataset, IterableDataset, Subset

import fastio
from fastio import DatasetClosed
from tests.pictures import jpeg
from tests.support import numbered_folder

ROWS, CLOSED_AT = 12, 5


class Wrapped:
    """A user's dataset, whose samples come from one of fastio's."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        return self.dataset[row]


class Several(Wrapped):
    """The same, with `__getitems__`."""

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self.dataset[row] for row in rows]


class Iterated(IterableDataset[Any]):
    """The same, iterated over."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return iter(self.dataset)


def texts(tmp_path: Path) -> Any:
    fastio.pack([{"text": f"row {row}"} for row in range(ROWS)], tmp_path / "packed")
    return fastio.open(tmp_path / "packed")


def images(tmp_path: Path) -> Any:
    fastio.pack(numbered_folder(tmp_path / "images", (6, 6)), tmp_path / "packed")
    return fastio.open(tmp_path / "packed")


def lists(tmp_path: Path) -> Any:
    rows = [{"images": [jpeg(), jpeg()]} for _ in range(ROWS)]
    fastio.pack(rows, tmp_path / "packed")
    return fastio.open(tmp_path / "packed")


def hugging_face(tmp_path: Path) -> Any:
    features = hf.Features({"image": hf.Image()})
    rows = [{"image": {"bytes": jpeg(), "path": None}} for _ in range(ROWS)]
    return fastio.open(hf.Dataset.from_list(rows, features=features))


def closed_at_a_row(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a dataset close itself when one of its rows from CLOSED_AT on is asked for."""

    def closing(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            if np.max(given[-1], initial=0) >= CLOSED_AT:
                dataset.close()
            return own(*given, **options)

        return call

    for name in ("gather_all", "image_counts", "image_reads"):
        monkeypatch.setattr(dataset, name, closing(getattr(dataset, name)))


SOURCES: dict[str, Callable[[Any], Any]] = {
    "a Subset": lambda dataset: Subset(dataset, list(range(len(dataset)))),
    "a ConcatDataset": lambda dataset: ConcatDataset([dataset, Subset(dataset, [0, 1])]),
}
WRAPPED = {"wrapped": Wrapped, "with __getitems__": Several, "iterated": Iterated}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("make", [texts, images, lists, hugging_face])
def test_a_dataset_that_is_closed_during_a_pack_is_no_bad_sample(
    make: Callable[[Path], Any], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make(tmp_path)
    closed_at_a_row(dataset, monkeypatch)
    with pytest.raises(DatasetClosed, match="closed"):
        fastio.pack(SOURCES[source](dataset), tmp_path / "out", on_error="skip", workers=1)
    with pytest.raises(fastio.DatasetNotFound):
        fastio.open(tmp_path / "out" / "manifest.arrow")


@pytest.mark.parametrize("wrap", WRAPPED)
def test_a_closed_dataset_in_a_user_s_own_is_no_bad_sample(
    wrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = texts(tmp_path)
    closed_at_a_row(dataset, monkeypatch)
    with pytest.raises(DatasetClosed, match="closed"):
        fastio.pack(WRAPPED[wrap](dataset), tmp_path / "out", on_error="skip", workers=1)


@pytest.mark.parametrize("make", [texts, images, lists])
def test_a_closed_dataset_ends_an_epoch_that_skips_bad_samples(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    dataset = make(tmp_path)
    dataset.close()
    with (
        fastio.Loader(dataset, 4, on_error="skip") as loader,
        pytest.raises(DatasetClosed, match="closed"),
    ):
        list(loader)
