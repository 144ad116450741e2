"""The engine decodes what Pillow decodes, in order, for any number of threads."""

from __future__ import annotations

import gc
import io
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

import fastio
from fastio import (
    FolderDataset,
    ImageError,
    LoaderClosed,
    LoaderTimeout,
    SampleError,
    SourceNotFound,
    TransformError,
    _native,
)
from fastio import transforms as T
from fastio.engine import Engine, EngineSettings
from fastio.engine.batch import Batch
from fastio.order.order import Order
from fastio.order.plan import Plan
from tests.children import in_fork
from tests.support import descriptors, slow_reads, threads, until

SUBSAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


def picture(height: int, width: int, seed: int, channels: int = 3) -> Pillow.Image:
    """Smooth shapes with edges and a little noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for _ in range(channels):
        fy, fx, phase = rng.uniform(0.01, 0.2, 3)
        plane = 120 + 80 * np.sin(fy * y + fx * x + 40 * phase)
        plane += 50 * ((y // int(rng.integers(5, 40)) + x // int(rng.integers(5, 40))) % 2)
        planes.append(plane + rng.normal(0, 6, plane.shape))
    pixels = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    return Pillow.fromarray(pixels if channels == 3 else pixels[..., 0])


def jpeg(image: Pillow.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **({"quality": 90} | options))
    return out.getvalue()


def folder(root: Path, files: Iterable[tuple[str, bytes]]) -> FolderDataset:
    for name, data in files:
        path = root / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return FolderDataset(root)


def run(
    engine: Engine, batch_size: int = 4, epoch: int = 0, seed: int = 0, **plan: Any
) -> list[Batch]:
    order = Order(len(engine.dataset), mode="sequential")
    return list(engine.run(Plan(order, batch_size, **plan), seed=seed, epoch=epoch))


def images(
    dataset: Any, transforms: list[Any], *, epoch: int = 0, seed: int = 0, **options: Any
) -> Any:
    """All images of an epoch, in row order: one array, or a list where sizes differ.

    (height, width, channels) each, if not said otherwise.
    """
    options = {"channels_last": True, **options}
    engine = Engine(dataset, EngineSettings(transforms={"image": T.compile(transforms)}, **options))
    try:
        batches = run(engine, len(dataset), epoch, seed)
        (batch,) = batches
        return batch.fields["image"]
    finally:
        engine.close()


def pillow_pixels(dataset: FolderDataset, row: int) -> np.ndarray[Any, Any]:
    with Pillow.open(dataset.paths[row]) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def assert_near_pillow(found: np.ndarray[Any, Any], expected: Any, path: str | Path) -> None:
    """A resized crop is close to Pillow's; both round.

    Progressive files are resized as pixels, as Pillow does it. The others are resized before their
    colours are converted, and colours out of range are clipped afterwards. That differs most in
    these pictures, because each of their channels has edges at full contrast.
    """
    difference = np.abs(found - expected.astype(int))
    progressive, gray = Path(path).name.startswith("1-"), "gray" in Path(path).name
    assert difference.max() <= (2 if progressive or gray else 12)
    assert np.mean(difference <= 1) > (0.999 if progressive or gray else 0.98)
    # Before Pillow 13, rows and columns are resampled in another order, which rounds otherwise.
    same = int(PIL.__version__.split(".")[0]) >= 13
    assert difference.mean() < ((0.05 if same else 0.25) if progressive else 0.5)
    assert np.mean(np.square(difference)) < 255**2 / 10**5  # 50 dB


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> FolderDataset:
    """Twelve JPEGs: every sampling, gray, progressive, restart intervals, odd sizes."""
    root = tmp_path_factory.mktemp("photos")
    files = []
    for index, (height, width) in enumerate([(97, 131), (160, 121), (64, 64), (211, 300)]):
        for name, subsampling in SUBSAMPLINGS.items():
            options: dict[str, Any] = {"subsampling": subsampling}
            if index == 1:
                options["progressive"] = True
            if index == 2:
                options["restart_marker_blocks"] = 3
            data = jpeg(picture(height, width, index), **options)
            files.append((f"{index}-{name.replace(':', '')}.jpg", data))
    files.append(("gray.jpg", jpeg(picture(90, 77, 9, channels=1))))
    return folder(root, files)


class Squares:
    """Images 8 x 8 of one colour each."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"image": np.full((8, 8, 3), row, np.uint8)}


def squares(root: Path) -> fastio.Dataset:
    """96 raw images in several shards."""
    fastio.pack(Squares(), root, codec="raw", shard_size=16 * 192)
    return fastio.Dataset(root)


@pytest.mark.parametrize("size", [1, 5, 16, 96])
def test_raw_images_of_many_shards_come_in_batches_of_any_size(tmp_path: Path, size: int) -> None:
    dataset = squares(tmp_path / "packed")
    assert dataset.num_shards > 4
    transforms = {"image": T.compile([T.CenterCrop(8)])}
    engine = Engine(dataset, EngineSettings(transforms=transforms, threads=3))
    try:
        for _ in range(3):
            for batch in engine.run(Plan(Order(96, seed=1), size), epoch=0):
                pixels = batch.fields["image"].reshape(len(batch.rows), -1)
                assert (pixels == batch.rows[:, None]).all()
    finally:
        engine.close()


def test_a_shard_that_is_missing_is_an_error_of_the_batches_that_need_it(tmp_path: Path) -> None:
    dataset = squares(tmp_path / "packed")
    Path(dataset.shard_path(3)).unlink()
    engine = Engine(dataset, EngineSettings(transforms={"image": T.compile([T.CenterCrop(8)])}))
    whole, missing = [], 0
    stream = engine.run(Plan(Order(96, mode="sequential"), 4), epoch=0)
    try:
        while True:
            try:
                whole += next(stream).rows.tolist()
            except StopIteration:
                break
            except SourceNotFound:
                missing += 1
    finally:
        engine.close()
    first, last = dataset.manifest.first_row[3:5].tolist()
    lost = [begin for begin in range(0, 96, 4) if begin < last and begin + 4 > first]
    assert 0 < len(lost) == missing < 24
    assert whole == [row for row in range(96) if row // 4 * 4 not in lost]


def test_a_raw_image_that_is_damaged_is_named_whatever_the_size_of_its_batch(
    tmp_path: Path,
) -> None:
    dataset = squares(tmp_path / "packed")
    shard = Path(dataset.shard_path(int(dataset.locate(np.array([37]))[0][0])))
    data = bytearray(shard.read_bytes())
    place = data.index(bytes([37]) * 192)
    data[place + 100] ^= 1
    with shard.open("r+b") as file:  # the same file
        file.seek(place)
        file.write(data[place : place + 192])
    for size in (1, 96):
        engine = Engine(dataset, EngineSettings(transforms={"image": T.compile([T.CenterCrop(8)])}))
        with pytest.raises(ImageError, match="row 37"):
            run(engine, size)
        engine.close()


@pytest.fixture
def engine(photos: FolderDataset) -> Any:
    made = Engine(
        photos,
        EngineSettings(transforms={"image": T.compile([T.RandomResizedCrop(32)])}, threads=2),
    )
    yield made
    made.close()


# Pixels


def test_an_image_without_transforms_is_what_pillow_decodes(photos: FolderDataset) -> None:
    for row, pixels in enumerate(images(photos, [])):
        np.testing.assert_array_equal(pixels, pillow_pixels(photos, row))


@pytest.mark.parametrize("size", [16, 33, 61])
def test_the_pixels_of_a_crop_are_those_of_a_full_decode(photos: FolderDataset, size: int) -> None:
    """Chroma upsampling at the crop's edges included: nothing is off by even one."""
    compiled = T.compile([T.RandomCrop(size)])
    for epoch in range(25):
        found = images(photos, [T.RandomCrop(size)], epoch=epoch)
        for row in range(len(photos)):
            full = pillow_pixels(photos, row)
            (drawn,) = T.augmentation(compiled, 0, epoch, [row], [full.shape[0]], [full.shape[1]])
            y, x, height, width = drawn.window
            np.testing.assert_array_equal(found[row], full[y : y + height, x : x + width])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_a_random_resized_crop_is_pillows_crop_and_resize(
    photos: FolderDataset, interpolation: str
) -> None:
    steps = [
        T.RandomResizedCrop(72, scale=(0.3, 1.0), interpolation=interpolation),
        T.RandomHorizontalFlip(),
        T.RandomVerticalFlip(),
    ]
    compiled = T.compile(steps)
    filters = {"bilinear": Pillow.BILINEAR, "bicubic": Pillow.BICUBIC, "nearest": Pillow.NEAREST}
    for epoch in range(10):
        found = images(photos, steps, epoch=epoch, seed=5)
        for row in range(len(photos)):
            full = pillow_pixels(photos, row)
            (drawn,) = T.augmentation(compiled, 5, epoch, [row], [full.shape[0]], [full.shape[1]])
            y, x, height, width = drawn.crop
            assert min(height, width) < 4 * 72  # or it would be decoded at half the size
            crop = Pillow.fromarray(full[y : y + height, x : x + width])
            expected = np.asarray(crop.resize((72, 72), filters[interpolation])).astype(int)
            expected = expected[:, ::-1] if drawn.flip_horizontal else expected
            expected = expected[::-1] if drawn.flip_vertical else expected
            assert_near_pillow(found[row], expected, photos.paths[row])
            if interpolation == "nearest":
                assert np.abs(found[row] - expected).max() <= 1


@pytest.mark.parametrize(("resize", "crop"), [(48, 32), ((50, 70), 40), (64, 80), (100, 100)])
def test_resize_and_center_crop_are_torchvisions(
    photos: FolderDataset, resize: Any, crop: int
) -> None:
    found = images(photos, [T.Resize(resize), T.CenterCrop(crop)])
    for row in range(len(photos)):
        image = Pillow.fromarray(pillow_pixels(photos, row))
        if isinstance(resize, int):
            short, long = sorted(image.size)
            other = int(resize * long / short)
            size = (resize, other) if image.width <= image.height else (other, resize)
        else:
            size = (resize[1], resize[0])
        if min(image.height / size[1], image.width / size[0]) >= 4:
            continue  # decoded at half the size, which another test looks at
        resized = np.asarray(image.resize(size, Pillow.BILINEAR)).astype(int)
        expected = np.zeros((crop, crop, 3), int)
        y, x = round((size[1] - crop) / 2), round((size[0] - crop) / 2)
        if size[1] < crop:
            y = -((crop - size[1]) // 2)
        if size[0] < crop:
            x = -((crop - size[0]) // 2)
        inner = resized[max(y, 0) : max(y, 0) + crop, max(x, 0) : max(x, 0) + crop]
        top, left = max(-y, 0), max(-x, 0)
        expected[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
        assert_near_pillow(found[row], expected, photos.paths[row])


def test_large_images_are_decoded_reduced_and_look_the_same(tmp_path: Path) -> None:
    dataset = folder(
        tmp_path, [("a.jpg", jpeg(picture(701, 999, 3).resize((999, 701)), quality=95))]
    )
    full = Pillow.fromarray(pillow_pixels(dataset, 0))
    for size in (330, 170, 80, 40):
        (found,) = images(dataset, [T.Resize((size, size))])
        expected = np.asarray(full.resize((size, size), Pillow.BILINEAR)).astype(int)
        assert np.abs(found - expected).mean() < (0.4 if size > 170 else 1)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("reduce", [False, True])
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, reduce: bool) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    source = picture(203, 301, 4)
    dataset = folder(tmp_path, [("a.jpg", jpeg(source, exif=exif.tobytes(), quality=95))])
    upright = pillow_pixels(dataset, 0)
    (whole,) = images(dataset, [])
    np.testing.assert_array_equal(whole, upright)
    size = (40, 30) if reduce else (150, 120)
    for epoch in range(4):
        steps = [T.RandomResizedCrop(size, scale=(0.5, 1.0), ratio=(0.9, 1.1))]
        (found,) = images(dataset, steps, epoch=epoch)
        height, width = upright.shape[:2]
        (drawn,) = T.augmentation(T.compile(steps), 0, epoch, [0], [height], [width])
        y, x, height, width = drawn.crop
        crop = Pillow.fromarray(upright[y : y + height, x : x + width])
        expected = np.asarray(crop.resize(size[::-1], Pillow.BILINEAR)).astype(int)
        difference = np.abs(found - expected)
        assert difference.mean() < (2 if reduce else 0.4)


@pytest.mark.parametrize("channels_last", [True, False])
def test_normalised_batches_are_torchvisions(photos: FolderDataset, channels_last: bool) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    steps = [T.RandomResizedCrop(24), T.Normalize(mean, std)]
    plain = images(photos, steps[:1], channels_last=True)
    found = images(photos, steps, channels_last=channels_last, normalize_on_cpu=True)
    expected = (plain / np.float32(255) - np.float32(mean)) / np.float32(std)
    found = found if channels_last else found.transpose(0, 2, 3, 1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_batches_can_be_stored_channels_first(photos: FolderDataset) -> None:
    steps = [T.RandomResizedCrop(24)]
    first = images(photos, steps, channels_last=False)
    last = images(photos, steps, channels_last=True)
    np.testing.assert_array_equal(first, last.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_bytes_do_not_depend_on_the_number_of_threads(
    photos: FolderDataset, threads: int
) -> None:
    steps = [T.RandomResizedCrop(40), T.RandomHorizontalFlip()]
    one = images(photos, steps, threads=1, epoch=3)
    many = images(photos, steps, threads=threads, epoch=3)
    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("level", _native.simd_levels()[:-1])
def test_the_bytes_do_not_depend_on_the_instruction_set(photos: FolderDataset, level: str) -> None:
    steps = [T.RandomResizedCrop(40), T.RandomHorizontalFlip()]
    best = images(photos, steps)
    try:
        _native.simd_force(level)
        other = images(photos, steps)
    finally:
        _native.simd_force(_native.simd_levels()[-1])
    np.testing.assert_array_equal(best, other)


def test_other_formats_go_through_pillow(tmp_path: Path) -> None:
    def saved(kind: str, image: Pillow.Image) -> bytes:
        out = io.BytesIO()
        image.save(out, kind)
        return out.getvalue()

    source = picture(60, 80, 1)
    dataset = folder(
        tmp_path,
        [
            ("a.png", saved("PNG", source)),
            ("b.jpg", saved("PNG", source)),  # not what its name says
            ("c.jpg", jpeg(source.convert("CMYK"))),
            ("d.bmp", saved("BMP", source)),
        ],
    )
    found = images(dataset, [T.Resize((30, 40))])
    assert found.shape == (4, 30, 40, 3)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[3])
    for row, pixels in enumerate(images(dataset, [])):
        np.testing.assert_array_equal(pixels, pillow_pixels(dataset, row))


# Order, memory and leases


def test_batches_come_in_order_with_their_rows_and_labels(engine: Engine) -> None:
    batches = run(engine, 5)
    assert [batch.rows.tolist() for batch in batches] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11, 12],
    ]
    assert [batch.next_position for batch in batches] == [5, 10, 13]
    assert batches[2].fields["image"].shape == (3, 3, 32, 32)  # contiguous planes
    assert batches[2].fields["label"].tolist() == [0, 0, 0]


def test_arrays_that_are_kept_are_not_written_again(engine: Engine) -> None:
    kept, copies = [], []
    for epoch in range(20):
        for batch in run(engine, 3, epoch):
            kept.append(batch.fields["image"])
            copies.append(batch.fields["image"].copy())
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_part_of_a_batch_that_is_kept_is_not_written_again(engine: Engine) -> None:
    kept, copies = [], []
    for epoch in range(20):
        for batch in run(engine, 3, epoch):
            kept.append(batch.fields["image"][1:2])
            copies.append(kept[-1].copy())
            del batch
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_slots_are_used_again_once_nobody_holds_them(photos: FolderDataset) -> None:
    allocated = []

    def allocate(shape: tuple[int, ...], dtype: str) -> Any:
        allocated.append(shape)
        return np.empty(shape, dtype)

    steps = T.compile([T.RandomResizedCrop(16)])
    engine = Engine(photos, EngineSettings(transforms={"image": steps}, allocate=allocate))
    for epoch in range(30):
        order = Order(len(photos))
        for batch in engine.run(Plan(order, 2, drop_last=True), epoch=epoch, ahead=2):
            del batch
    engine.close()
    assert len(allocated) <= 5


def test_memory_of_its_own_for_every_batch_without_recycling(photos: FolderDataset) -> None:
    steps = T.compile([T.RandomResizedCrop(16)])
    engine = Engine(photos, EngineSettings(transforms={"image": steps}, recycle=False))
    addresses = [b.fields["image"].__array_interface__["data"][0] for b in run(engine, 4)]
    kept = run(engine, 4)
    assert len({b.fields["image"].__array_interface__["data"][0] for b in kept}) == len(addresses)
    engine.close()


def test_a_released_batch_gives_its_slot_back_at_once(engine: Engine) -> None:
    stream = engine.run(Plan(Order(len(engine.dataset)), 2), epoch=0, ahead=1)
    first = next(stream)
    array = first.fields["image"]
    first.release()
    later = [next(stream).fields["image"] for _ in range(3)]
    assert any(np.shares_memory(array, other) for other in later)


def test_closing_a_stream_early_leaves_the_engine_usable(engine: Engine) -> None:
    for _ in range(50):
        stream = engine.run(Plan(Order(len(engine.dataset)), 2), epoch=0, ahead=4)
        next(stream)
        stream.close()
        assert list(stream) == []
    assert len(run(engine, 13)) == 1


def test_two_streams_of_one_engine_do_not_disturb_each_other(engine: Engine) -> None:
    plan = Plan(Order(len(engine.dataset)), 3)
    for a, b in zip(engine.run(plan, epoch=1), engine.run(plan, epoch=1), strict=True):
        np.testing.assert_array_equal(a.fields["image"], b.fields["image"])
        assert not np.shares_memory(a.fields["image"], b.fields["image"])


def test_no_thread_or_descriptor_is_left_after_close(photos: FolderDataset) -> None:
    gc.collect()
    tasks, files = threads(), descriptors()
    for _ in range(5):
        steps = T.compile([T.RandomResizedCrop(16)])
        engine = Engine(photos, EngineSettings(transforms={"image": steps}, threads=4))
        next(engine.run(Plan(Order(len(photos)), 2), epoch=0, ahead=4))
        engine.close()
        engine.close()
    until(lambda: threads() <= tasks)
    assert descriptors() <= files


def test_a_closed_engine_says_so(engine: Engine) -> None:
    engine.close()
    with pytest.raises(LoaderClosed):
        engine.run([], epoch=0)


def test_a_forked_child_starts_threads_of_its_own(photos: FolderDataset) -> None:
    steps = T.compile([T.RandomResizedCrop(16)])
    engine = Engine(photos, EngineSettings(transforms={"image": steps}, threads=2))
    stream = engine.run(Plan(Order(len(photos)), 2), epoch=0)
    next(stream)

    def work() -> bool:
        stream.close()
        good = len(run(engine, 5)) == 3
        engine.close()
        return good

    assert in_fork(work) == 0
    assert len(list(stream)) == 6
    engine.close()


def test_streams_on_many_python_threads(engine: Engine) -> None:
    expected = [batch.fields["image"].copy() for batch in run(engine, 4, 2)]
    wrong: list[str] = []

    def work() -> None:
        for _ in range(10):
            for batch, array in zip(run(engine, 4, 2), expected, strict=True):
                if not np.array_equal(batch.fields["image"], array):
                    wrong.append("differs")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Bad samples


@pytest.fixture
def damaged(tmp_path: Path) -> FolderDataset:
    """Six images of which number 1 is truncated, 3 is empty and 4 is text."""
    good = [jpeg(picture(64, 64, seed)) for seed in range(6)]
    contents = [good[0], good[1][: len(good[1]) // 2], good[2], b"", b"hello", good[5]]
    return folder(tmp_path, [(f"{i}.jpg", data) for i, data in enumerate(contents)])


def make(dataset: FolderDataset, on_error: Any, **options: Any) -> Engine:
    steps = T.compile([T.Resize((16, 16))])
    return Engine(
        dataset, EngineSettings(transforms={"image": steps}, on_error=on_error, **options)
    )


def test_a_bad_sample_is_raised_by_name_when_its_batch_comes(damaged: FolderDataset) -> None:
    engine = make(damaged, "raise")
    stream = engine.run(Plan(Order(6, mode="sequential"), 1), epoch=0, ahead=6)
    outcomes: list[Any] = []
    while True:
        try:
            outcomes.append(int(next(stream).rows[0]))
        except StopIteration:
            break
        except ImageError as error:
            outcomes.append((error.row, Path(error.name).name, str(error.cause)))
    engine.close()
    assert [o if isinstance(o, int) else o[0] for o in outcomes] == [0, 1, 2, 3, 4, 5]
    assert outcomes[1] == (1, "1.jpg", "JPEG data ends too early")
    assert outcomes[3][:2] == (3, "3.jpg")
    assert "is empty" in outcomes[3][2]
    assert "not an image" in outcomes[4][2]


def test_skipped_samples_leave_their_batch_and_are_counted(damaged: FolderDataset) -> None:
    engine = make(damaged, "skip")
    batches = run(engine, 3)
    assert [batch.rows.tolist() for batch in batches] == [[0, 2], [5]]
    assert [len(batch.fields["image"]) for batch in batches] == [2, 1]
    assert [[e.row for e in batch.errors] for batch in batches] == [[1], [3, 4]]
    assert all(isinstance(e, SampleError) for batch in batches for e in batch.errors)
    assert engine.stats.skipped == 3
    whole = images(FolderDataset.from_samples([(damaged.paths[2], 0)], ["a"]), [T.Resize((16, 16))])
    np.testing.assert_array_equal(batches[0].fields["image"][1], whole[0].transpose(2, 0, 1))
    engine.close()


def test_a_batch_of_bad_samples_alone_is_left_out_when_skipping(damaged: FolderDataset) -> None:
    engine = make(damaged, "skip")
    assert [batch.rows.tolist() for batch in run(engine, 1)] == [[0], [2], [5]]
    engine.close()


def test_skipped_batches_are_not_written_while_they_are_held(damaged: FolderDataset) -> None:
    engine = make(damaged, "skip")
    kept = [
        (b.fields["image"], b.fields["image"].copy()) for e in range(20) for b in run(engine, 3, e)
    ]
    for array, copy in kept:
        np.testing.assert_array_equal(array, copy)
    engine.close()


def test_replaced_samples_are_the_next_good_ones(damaged: FolderDataset) -> None:
    engine = make(damaged, "replace")
    batches = run(engine, 3)
    assert [batch.rows.tolist() for batch in batches] == [[0, 2, 2], [5, 5, 5]]
    np.testing.assert_array_equal(batches[0].fields["image"][1], batches[0].fields["image"][2])
    assert engine.stats.replaced == 3
    engine.close()


def test_a_sample_and_its_replacement_do_not_share_memory() -> None:
    images = [np.zeros((2, 2, 3), np.uint8), np.ones((3, 2, 3), np.uint8)]
    batch = Batch({"image": images}, np.arange(2), 2, epoch=0, step=0, next_position=2)
    batch.replace([0], np.array([1]))
    batch.fields["image"][0] += 1
    assert [image.max() for image in batch.fields["image"]] == [2, 1]


def test_a_batch_without_a_good_sample_cannot_be_replaced(damaged: FolderDataset) -> None:
    engine = make(damaged, "replace")
    stream = engine.run(Plan(Order(6, mode="sequential"), 1), epoch=0)
    next(stream)
    with pytest.raises(ImageError, match="ends too early"):
        next(stream)
    assert next(stream).rows.tolist() == [2]
    engine.close()


def test_a_missing_file_is_a_named_error(photos: FolderDataset, tmp_path: Path) -> None:
    dataset = FolderDataset.from_samples([(str(tmp_path / "gone.jpg"), 0)], ["a"])
    with pytest.raises(ImageError, match=r"gone\.jpg.*No such file"):
        images(dataset, [T.Resize((8, 8))])


@pytest.mark.parametrize("cut", [2, 3, 4, 20, 100, 200, 400, 800])
def test_a_jpeg_cut_anywhere_is_an_error_never_a_crash(tmp_path: Path, cut: int) -> None:
    data = jpeg(picture(64, 64, 0))
    dataset = folder(tmp_path, [("a.jpg", data[:cut])])
    with pytest.raises(ImageError):
        images(dataset, [T.Resize((16, 16))])


def test_mutated_jpegs_decode_or_fail_but_never_hang_or_crash(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    original = np.frombuffer(jpeg(picture(48, 48, 2), progressive=True), np.uint8)
    files = []
    for index in range(300):
        data = original.copy()
        for _ in range(int(rng.integers(1, 8))):
            data[rng.integers(2, len(data))] = rng.integers(0, 256)
        files.append((f"{index:03}.jpg", data.tobytes()))
    engine = make(folder(tmp_path, files), "skip", threads=2)
    assert sum(len(batch.rows) + len(batch.errors) for batch in run(engine, 50)) <= 300
    engine.close()


def test_a_slow_batch_times_out_and_can_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = slow_reads(monkeypatch)
    picture(20, 20, 0).save(tmp_path / "slow.png")
    dataset = FolderDataset.from_samples([(str(tmp_path / "slow.png"), 0)], ["a"])
    engine = make(dataset, "raise")

    stream = engine.run(Plan(Order(1), 1), epoch=0, timeout_s=0.2)
    with pytest.raises(LoaderTimeout, match="batch 0"):
        next(stream)
    arrived.set()
    batch = None
    while batch is None:
        with suppress(LoaderTimeout):
            batch = next(stream)
    assert len(batch.rows) == 1
    engine.close()


# Settings


def test_a_field_that_does_not_exist_is_an_error(photos: FolderDataset) -> None:
    with pytest.raises(TransformError, match="no field 'picture'"):
        Engine(photos, EngineSettings(fields=["picture"]))


def test_only_the_wanted_fields_come(photos: FolderDataset) -> None:
    engine = Engine(photos, EngineSettings(transforms={}, fields=["label"]))
    assert list(run(engine, 13)[0].fields) == ["label"]
    engine.close()


@pytest.mark.parametrize("bad", [{"threads": 0}, {"on_error": "ignore"}])
def test_an_impossible_setting_is_an_error(photos: FolderDataset, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Engine(photos, EngineSettings(transforms={}, **bad))
