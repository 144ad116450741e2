"""A forked child has none of its parent's threads: it must not wait for them.

next() of the parent's stream hung in a child, and so did dropping the parent's engine.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from fastio import FolderDataset, LoaderClosed
from fastio import transforms as T
from fastio.engine import BatchStream, Engine, EngineSettings
from fastio.order.order import Order
from fastio.order.plan import Plan
from tests.children import in_fork
from tests.pictures import jpeg


def start(tmp_path: Path) -> tuple[Engine, BatchStream]:
    """An engine with batches in work that take a while."""
    (tmp_path / "a").mkdir()
    photo = jpeg(900, 900)
    for number in range(12):
        (tmp_path / "a" / f"{number:02}.jpg").write_bytes(photo)
    dataset = FolderDataset(tmp_path)
    steps = T.compile([T.Resize((500, 500))])
    engine = Engine(dataset, EngineSettings(transforms={"image": steps}, threads=2))
    stream = engine.run(Plan(Order(len(dataset)), 4), epoch=0, ahead=2)
    next(stream)
    return engine, stream


def test_the_parents_stream_says_so_in_a_child(tmp_path: Path) -> None:
    engine, stream = start(tmp_path)

    def work() -> bool:
        with pytest.raises(LoaderClosed, match="parent"):
            next(stream)
        return len(list(engine.run(Plan(Order(12), 4), epoch=0))) == 3

    assert in_fork(work) == 0
    assert len(list(stream)) == 2
    engine.close()


def test_a_child_can_drop_its_parents_engine_and_stream(tmp_path: Path) -> None:
    held = list(start(tmp_path))

    def work() -> bool:
        held.clear()
        gc.collect()
        return True

    assert in_fork(work) == 0
    held[0].close()  # type: ignore[union-attr]
