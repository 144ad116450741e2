"""Functions of the native module refuse arguments with which they would write or read wildly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fastio import FastioError, _native
from tests.children import in_fork

REFUSED = (ValueError, TypeError, IndexError, OverflowError, MemoryError, FastioError)
HUGE = 1 << 62
WRONG_ROWS = [-1, 100, HUGE, -HUGE]


def int64(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def every_second(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values, of an array whose elements do not lie side by side."""
    return np.repeat(array, 2)[::2]


# Outputs that are none: another type, another length, scattered, read-only.
BAD_OUTS: list[Callable[[npt.NDArray[Any]], Any]] = [
    lambda out: out.astype(np.float32),
    lambda out: out[:-1].copy(),
    every_second,
    lambda out: read_only(out.copy()),
    lambda out: out.reshape(1, -1),
    lambda out: None,
]


@pytest.mark.parametrize("spoil", BAD_OUTS)
def test_orders_refuse_outputs(spoil: Callable[[npt.NDArray[Any]], Any]) -> None:
    rows, out = np.arange(10), np.zeros(10, np.int64)
    for call in (
        lambda to: _native.permute(100, 1, rows, to),
        lambda to: _native.permute_inverse(100, 1, rows, to),
        lambda to: _native.permute_window(100, 8, 3, 1, rows, to),
        lambda to: _native.permute_window_inverse(100, 8, 3, 1, rows, to),
        lambda to: _native.windows_of(100, 8, 3, 1, rows, out, to),
    ):
        with pytest.raises(REFUSED):
            call(spoil(out.copy()))


@pytest.mark.parametrize("wrong", WRONG_ROWS)
@pytest.mark.parametrize("place", [0, 700, 4999])
def test_orders_refuse_positions(wrong: int, place: int) -> None:
    rows, out = np.zeros(5000, np.int64), np.zeros(5000, np.int64)
    rows[place] = wrong
    for call in (
        lambda: _native.permute(100, 1, rows, out),
        lambda: _native.permute_inverse(100, 1, rows, out),
        lambda: _native.permute_window(100, 8, 3, 1, rows, out),
        lambda: _native.permute_window_inverse(100, 8, 3, 1, rows, out),
        lambda: _native.windows_of(100, 8, 3, 1, rows, out, out.copy()),
    ):
        with pytest.raises(REFUSED):
            call()


def test_orders_end_while_their_positions_are_changed() -> None:
    rows, out = np.zeros(200_000, np.int64), np.zeros(200_000, np.int64)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            rows[:] = 1 << 40
            rows[:] = 0

    thread = threading.Thread(target=change)
    thread.start()
    for _ in range(30):
        try:
            _native.permute(1000, 1, rows, out)
            _native.permute_window_inverse(1000, 8, 3, 1, rows, out)
        except ValueError:
            continue
        assert out.min() >= 0
        assert out.max() < 1000
    done.set()
    thread.join()


# Eight rows of 8 bytes into two blocks of four records.
def filled(
    *,
    rows: int = 8,
    memory: Any = None,
    stride: int = 8,
    shift: int = 2,
    first: int = 0,
    column: Any = None,
    offset: int = 0,
) -> None:
    column = np.zeros(8 * 8, np.uint8) if column is None else column
    memory = [np.zeros(32, np.uint8)] * 2 if memory is None else memory
    _native.interleave([(column, offset)], rows, memory, stride, shift, first)


def test_interleave_refuses_sizes_and_memory() -> None:
    filled()
    block = np.zeros(32, np.uint8)
    for options in (
        {"stride": 0},
        {"stride": 12},
        {"stride": 1 << 61},  # the product with rows would have more than 64 bits
        {"rows": 9},
        {"rows": -8},
        {"rows": (1 << 64) - 1},
        {"shift": -1},
        {"shift": 3},
        {"shift": 64},
        {"first": 1},
        {"first": -1},
        {"first": (1 << 64) - 1},
        {"memory": []},
        {"memory": [block]},
        {"memory": [block, block[:31]]},
        {"memory": [block, np.zeros(64, np.uint8)[::2]]},
        {"memory": [block, read_only(block)]},
        {"memory": [block, np.zeros(32, np.int32)]},
        {"column": np.zeros(63, np.uint8)},
        {"column": np.zeros(8 * 16, np.uint8)},
        {"offset": 1},
        {"offset": (1 << 32) - 1},
    ):
        with pytest.raises(REFUSED):
            filled(**options)  # type: ignore[arg-type]


def test_deal_refuses_records_sizes_and_outputs() -> None:
    memory = [np.zeros(32, np.uint8)] * 2
    out = np.full(8 * 8 + 4096, 238, np.uint8)
    field = (out[: 8 * 8], 0)
    _native.deal(memory, 8, 2, np.arange(8), [field])
    for wrong in (8, -1, 1 << 52, HUGE, (1 << 63) - 1):
        with pytest.raises(REFUSED):
            _native.deal(memory, 8, 2, int64(0, 1, 2, 3, 4, 5, 6, wrong), [field])
    for stride, shift in ((1 << 61, 2), (0, 2), (8, 3), (8, -1)):
        with pytest.raises(REFUSED):
            _native.deal(memory, stride, shift, np.arange(8), [field])
    for target in (out[:63], out[: 8 * 16], out[: 8 * 16 : 2], read_only(out[: 8 * 8].copy())):
        with pytest.raises(REFUSED):
            _native.deal(memory, 8, 2, np.arange(8), [(target, 0)])
    assert (out[8 * 8 :] == 238).all()


@pytest.fixture
def shard(tmp_path: Path) -> _native.Mapping:
    (tmp_path / "shard").write_bytes(np.arange(100, dtype=np.int64).tobytes())
    return _native.Mapping(str(tmp_path / "shard"))


def table(mapping: _native.Mapping) -> _native.Table:
    made = _native.Table(int64(0, 100), [8], [(0, 0, 8, 0, 1, 1, 0)])
    made.set(0, mapping, [(0, 800)])
    return made


def test_tables_refuse_places_that_leave_the_file(shard: _native.Mapping) -> None:
    made = table(shard)
    for place in ((0, 801), (1, 800), (1 << 63, 800), (0, 792), ((1 << 64) - 8, 16), (801, 0)):
        with pytest.raises(REFUSED):
            made.set(0, shard, [place])
    for number in (1, HUGE, -1):
        with pytest.raises(REFUSED):
            made.set(number, shard, [(0, 800)])
    for field in ((1, 0, 8, 0, 1, 1, 0), (0, 0, 0, 0, 1, 1, 0), (0, 0, 8, 9, 1, 1, 0)):
        with pytest.raises(REFUSED):
            _native.Table(int64(0, 100), [8], [field])
    for rows in (int64(0), int64(0, 0), int64(0, -1), int64(1, 2), int64(0, 5, 4)):
        with pytest.raises(REFUSED):
            _native.Table(rows, [8], [(0, 0, 8, 0, 1, 1, 0)])


@pytest.mark.parametrize("wrong", WRONG_ROWS)
def test_gathers_refuse_rows(shard: _native.Mapping, wrong: int) -> None:
    made, engine, out = table(shard), _native.Engine(1), np.zeros(16, np.uint8)
    with pytest.raises(REFUSED):
        engine.gather(made, int64(0, wrong), [out])
    with pytest.raises(REFUSED):
        made.missing(int64(0, wrong))
    engine.close()


def test_gathers_refuse_memory(shard: _native.Mapping) -> None:
    made, engine, rows = table(shard), _native.Engine(1), np.arange(4)
    for out in (
        np.zeros(31, np.uint8),
        np.zeros(64, np.uint8)[::2],
        read_only(np.zeros(32, np.uint8)),
        "none",
    ):
        with pytest.raises(REFUSED):
            engine.gather(made, rows, [out])  # type: ignore[list-item]
    with pytest.raises(REFUSED):
        engine.gather(made, rows, [])
    engine.close()


def test_copies_refuse_pieces_that_leave_a_file_or_the_memory(shard: _native.Mapping) -> None:
    engine, out = _native.Engine(1), np.zeros(64, np.uint8)

    def copy(source: int, begin: int, nbytes: int, target: int, room: int) -> None:
        number = np.array([source], np.int32)
        slot = engine.copy(
            [shard], number, int64(begin), int64(nbytes), int64(target), int64(room), out
        )
        assert slot.wait(60.0)

    copy(0, 0, 8, 0, 8)
    for piece in (
        (1, 0, 8, 0, 8),
        (-1, 0, 8, 0, 8),
        (0, 793, 8, 0, 8),
        (0, -1, 8, 0, 8),
        (0, HUGE, 8, 0, 8),
        (0, 0, HUGE, 0, HUGE),
        (0, 0, 8, 57, 8),
        (0, 0, 8, -1, 8),
        (0, 0, 8, 0, 7),
        (0, 0, 8, 0, HUGE),
        (0, 0, -8, 0, 8),
    ):
        with pytest.raises(REFUSED):
            copy(*piece)
    one = int64(0)
    with pytest.raises(REFUSED):
        engine.copy([None], one.astype(np.int32), one, one, one, one, out)  # type: ignore[list-item]
    engine.close()


def test_engines_refuse_numbers_of_threads() -> None:
    for threads in (0, -1, 1 << 20):
        with pytest.raises(REFUSED):
            _native.Engine(threads)
    engine = _native.Engine(1)
    with pytest.raises(REFUSED):
        engine.set_threads(0)
    engine.close()


def submitted(engine: _native.Engine, files: _native.FileSet, **changed: Any) -> _native.Slot:
    given: dict[str, Any] = {
        "file": np.zeros(2, np.int32),
        "offset": np.zeros(2, np.int64),
        "length": np.full(2, -1, np.int64),
        "codec": np.ones(2, np.uint8),
        "orientation": np.ones(2, np.uint8),
        "height": np.full(2, 4, np.int32),
        "width": np.full(2, 4, np.int32),
        "crc32c": None,
        "index": None,
        "first": 0,
        "key": np.arange(2),
        "codebook": None,
        "channels": 3,
        "channels_last": True,
        "normalize": None,
        "out": np.zeros((2, 4, 4, 3), np.uint8),
    }
    given |= changed
    view = [given.pop(name) for name in ("channels_last", "normalize", "out")]
    rest = [given.pop(name) for name in ("first", "key", "codebook", "channels")]
    reads = _native.ImageReads(**given)
    return engine.submit(files, [(_native.Chain(), *view)], 0, 0, reads, *rest)


@pytest.fixture
def files(tmp_path: Path) -> _native.FileSet:
    (tmp_path / "raw").write_bytes(bytes(range(48)))
    made = _native.FileSet(keep_open=True)
    made.add([str(tmp_path / "raw")])
    return made


def wrong_indexes(mapping: _native.Mapping) -> list[Any]:
    """Indexes of two rows that do not lie in a file of 48 bytes, or have other lengths."""
    numbers, zeros, most = np.zeros(2, np.int32), int64(0, 0), np.iinfo(np.int64).max
    return [
        ([], numbers, zeros, zeros),
        ([None], numbers, zeros, zeros),
        ([mapping], np.zeros(1, np.int32), zeros, zeros),
        ([mapping], numbers, zeros, int64(1)),
        ([mapping], np.array([0, 1], np.int32), zeros, zeros),
        ([mapping], np.array([0, -1], np.int32), zeros, zeros),
        ([mapping], numbers, int64(0, 49), zeros),
        ([mapping], numbers, int64(0, -1), zeros),
        ([mapping], numbers, int64(0, 48), int64(0, 1)),
        ([mapping], numbers, int64(0, 1), int64(0, most)),
        ([mapping], numbers, zeros, int64(0, -1)),
    ]


def test_images_refuse_arguments(files: _native.FileSet, tmp_path: Path) -> None:
    engine = _native.Engine(1)
    mapping = _native.Mapping(str(tmp_path / "raw"))
    for changed in (
        {"offset": np.zeros(1, np.int64)},
        {"length": np.zeros(3, np.int64)},
        {"height": np.zeros(1, np.int32)},
        {"key": np.zeros((2, 1), np.int64)},
        {"key": np.arange(3)},
        {"first": 1},
        {"first": 3},
        {"first": -1},
        {"first": HUGE},
        {"crc32c": np.zeros(1, np.uint32)},
        *({"index": index} for index in wrong_indexes(mapping)),
        {"channels": 2},
        {"out": np.zeros((1, 4, 4, 3), np.uint8)},
        {"out": np.zeros((2, 4, 4, 1), np.uint8)},
        {"out": np.zeros((2, 4, 4, 3), np.float32)},
        {"out": np.zeros((2, 4, 8, 3), np.uint8)[:, :, ::2]},
        {"out": read_only(np.zeros((2, 4, 4, 3), np.uint8))},
        {"normalize": ([1.0], [0.0])},
    ):
        with pytest.raises(REFUSED):
            submitted(engine, files, **changed)
    columns = [np.zeros(2, np.int32), int64(0, 0), int64(-1, -1), *[np.ones(2, np.uint8)] * 2]
    reads = _native.ImageReads(*columns, *[np.full(2, 4, np.int32)] * 2)
    for views in ([], [(None, True, None, None)], [(_native.Chain(), True, None)]):
        with pytest.raises(REFUSED):
            engine.submit(files, views, 0, 0, reads, 0, np.arange(2), None, 3)
    engine.close()


def test_rows_of_images_that_make_no_sense_fail_one_by_one(files: _native.FileSet) -> None:
    engine = _native.Engine(1)
    for changed in (
        {"file": np.array([0, 7], np.int32)},
        {"file": np.array([0, -1], np.int32)},
        {"offset": int64(0, HUGE), "length": int64(-1, HUGE)},
        {"offset": int64(0, -5), "length": int64(-1, 5)},
        {"codec": np.array([1, 77], np.uint8)},
        {"codec": np.array([1, 3], np.uint8)},  # a block record without a codebook
        {"orientation": np.array([1, 200], np.uint8)},
        {"height": np.array([4, -4], np.int32)},
        {"height": np.array([4, 1 << 30], np.int32)},
        {"width": np.array([4, 5], np.int32)},
    ):
        slot = submitted(engine, files, **changed)
        assert slot.wait(60.0)
        assert [row for row, _, _ in slot.failures()] == [1]
    engine.close()


def test_images_are_taken_once_by_row(files: _native.FileSet) -> None:
    engine = _native.Engine(1)
    slot = submitted(engine, files, out=None)
    assert slot.wait(60.0)
    for row in (2, HUGE, -1):
        with pytest.raises(REFUSED):
            slot.take(row)
    with pytest.raises(REFUSED):
        slot.take(0, 1)
    assert slot.take(0) is not None
    assert slot.take(0) is None
    engine.close()


def test_columns_of_parquet_are_not_decoded_onto_themselves() -> None:
    decoder = _native.ColumnDecoder()
    memory = np.zeros(1000, np.uint8)
    none = np.zeros(0, np.uint8)
    with pytest.raises(REFUSED):
        decoder.decode(memory[:100], 10, 4, False, False, memory[90:130], none)
    with pytest.raises(REFUSED):
        decoder.decode(np.zeros(9, np.uint8), 10, 4, True, False, memory[:40], memory[39:41])
    for rows, width in ((10, 3), (1 << 50, 4), (11, 4), (HUGE, 8)):
        with pytest.raises(REFUSED):
            decoder.decode(np.zeros(9, np.uint8), rows, width, False, False, memory[:40], none)


def test_checksums_and_bins_refuse_arguments() -> None:
    data, sums = np.zeros(8, np.uint8), np.zeros(2, np.uint32)
    with pytest.raises(REFUSED):
        _native.crc32c_mismatch(data, int64(0, 4), sums)
    for starts in (int64(0, -1, 8), int64(0, 9, 8), int64(-HUGE, HUGE, 8)):
        assert _native.crc32c_mismatch(data, starts, sums) == 0
    for sizes, room in (([0], 8), ([9], 8), ([-1], 8), ([1], 0), ([1], 1 << 30)):
        with pytest.raises(REFUSED):
            _native.best_fit(np.array(sizes, np.int32), room)


def test_pixels_of_another_size_are_refused() -> None:
    chain = _native.Chain()
    pixels = np.zeros((4, 4, 3), np.uint8)
    wrong = [
        (np.zeros((4, 5, 3), np.uint8), True, None),
        (np.zeros((4, 4, 2), np.uint8), True, None),
        (np.zeros((4, 4, 3), np.uint8), False, None),
        (np.zeros((4, 4, 3), np.float32), True, None),
        (np.zeros((4, 4, 3), np.uint8), True, ([1.0] * 3, [0.0] * 3)),
        (np.zeros((4, 4, 3), np.float32), True, ([1.0] * 3, [0.0])),
    ]
    for out, channels_last, normalize in wrong:
        with pytest.raises(REFUSED):
            _native.transform(chain, 0, 0, 0, pixels, out, channels_last, normalize)
    with pytest.raises(REFUSED):
        _native.transform(chain, 0, 0, 0, np.zeros((0, 4, 3), np.uint8), pixels.copy(), True, None)
    one = np.ones(1, np.int32)
    for wrong in (np.ones(2, np.int32), np.zeros(1, np.int32)):
        with pytest.raises(REFUSED):
            chain.draws(0, 0, int64(0), wrong, one)
        with pytest.raises(REFUSED):
            chain.draws(0, 0, int64(0), one, wrong)


def test_a_forked_child_waits_for_no_lock_of_its_parent(
    shard: _native.Mapping, files: _native.FileSet
) -> None:
    engine, out = _native.Engine(2), np.zeros(800, np.uint8)
    slot = engine.gather(table(shard), np.arange(100), [out])

    def work() -> bool:
        nonlocal engine, slot
        slot.cancel()
        with pytest.raises(RuntimeError, match="parent"):
            slot.wait(1.0)
        files.close()
        engine.close()
        del slot, engine
        return True

    assert in_fork(work) == 0
    assert slot.wait(60.0)
    engine.close()


def test_operations_on_pixels_refuse_what_leads_out_of_the_image() -> None:
    def numbers(*values: float) -> list[_native.Spread]:
        return [_native.Spread([value]) for value in values]

    op, drawn = _native.Augment.op, _native.Spread([0.1, 1.0], range=True)
    for make in (
        lambda: op("crop", numbers(7)),
        lambda: op("one_channel", []),
        lambda: op("mix_begin", numbers(1)),
        lambda: op("mix_add", numbers(1)),
        lambda: op("mix_end", []),
        lambda: op("erase_area", [drawn, *numbers(1)]),
        lambda: op("corners", numbers(1e9)),
        lambda: op("corners", numbers(float("nan"))),
        lambda: _native.Augment.mix(0, 1, 1.0, op("invert", [])),
        lambda: _native.Augment.mix(1, 1, float("nan"), op("invert", [])),
    ):
        with pytest.raises(REFUSED):
            make()
    memory = np.full(3 * 8 * 8 + 4096, 238, np.uint8)
    out = memory[: 3 * 8 * 8].reshape(8, 8, 3)
    for node in (
        op("erase", numbers(0, 0, 9, 1)),
        op("erase", numbers(-1, 0, 1, 1)),
        op("erase", numbers(1e9, 0, 1, 1)),
        op("pad", numbers(-1, 0, 0, 0, 0)),
        op("pad", numbers(1e9, 0, 0, 0, 0)),
        op("pad", numbers(0, 0, 0, 0, 9)),
        op("gaussian_blur", numbers(-3, 3, 1)),
        op("posterize", numbers(99)),
    ):
        chain = _native.Chain()
        chain.augment(node)
        with pytest.raises(REFUSED):
            _native.transform(chain, 0, 0, 0, np.zeros((8, 8, 3), np.uint8), out, True, None)
    chain = _native.Chain()
    chain.erase_at_end(op("affine", numbers(0, 0, 90, 90, 0, 0, 0, 0)))
    floats = np.zeros((8, 8, 3), np.float32)
    plain = [1.0, 1.0, 1.0]
    with pytest.raises(REFUSED):
        _native.transform(
            chain, 0, 0, 0, np.zeros((8, 8, 3), np.uint8), floats, True, [plain, plain]
        )
    assert (memory[3 * 8 * 8 :] == 238).all()
