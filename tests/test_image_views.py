"""Several outputs of one image: each is what it would be alone, from every kind of storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

import fastio
from fastio import Loader, SampleError, Schema, TransformError, Views
from fastio.engine import Engine, EngineSettings
from fastio.order.order import Order
from fastio.order.plan import Plan
from fastio.transforms import compile
from tests.pictures import ORIENTATION_TAG, jpeg, picture, save

GLOBAL = [
    fastio.RandomResizedCrop(48, scale=(0.4, 1.0)), fastio.RandomHorizontalFlip(),
    fastio.ColorJitter(0.4, 0.4, 0.2, 0.1),
]  # fmt: skip
LOCAL = [fastio.RandomResizedCrop(20, scale=(0.05, 0.4)), fastio.RandomHorizontalFlip()]
PADDED = [fastio.RandomCrop(24, padding=8), fastio.RandomVerticalFlip(), fastio.GaussianBlur(5)]
WHOLE = [fastio.Resize((30, 40)), fastio.RandomInvert(0.5)]
LISTS = [GLOBAL, GLOBAL, LOCAL, LOCAL, LOCAL, PADDED, WHOLE]
MULTI = Views({"global": (2, GLOBAL), "local": (3, LOCAL), "padded": PADDED, "whole": WHOLE})


def photo(row: int, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    return jpeg(90 + 2 * row, 130 - 3 * row, row, exif=exif, quality=90)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of several sizes and orientations, gray ones, and PNGs, which Pillow decodes."""
    root: Path = tmp_path_factory.mktemp("views") / "photos"
    for row in range(12):
        place = root / f"class {row % 2}"
        place.mkdir(parents=True, exist_ok=True)
        if row % 5 == 3:
            picture(90 + row, 80, row).save(place / f"{row:02}.png")
        elif row == 4:
            (place / f"{row:02}.jpg").write_bytes(save(picture(99, 98, row).convert("L"), "JPEG"))
        else:
            (place / f"{row:02}.jpg").write_bytes(photo(row, orientation=1 + row % 8))
    return root


def opened(folder: Path, kind: str) -> Any:
    if kind == "folder":
        return fastio.open(folder)
    path = folder.parent / kind
    if not path.exists():
        fastio.pack(folder, path, codec="raw" if kind == "raw" else "blocks")
    return fastio.open(path)


def values(dataset: Any, settings: EngineSettings) -> dict[str, Any]:
    """The fields of an epoch as one batch, in row order."""
    engine = Engine(dataset, replace(settings, threads=2, fields=["image"]))
    try:
        plan = Plan(Order(len(dataset), mode="sequential"), len(dataset))
        (batch,) = engine.run(plan, seed=7, epoch=2)
        return {name: np.array(each) for name, each in batch.fields.items()}
    finally:
        engine.close()


@pytest.mark.parametrize("kind", ["folder", "blocks", "raw"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_each_view_is_what_its_list_gives_alone(
    folder: Path, kind: str, channels_last: bool
) -> None:
    with opened(folder, kind) as dataset:
        names = [f"image{place}" for place in MULTI.names()]
        lists = [replace(compile(steps), stream=view) for view, steps in enumerate(LISTS)]
        common = EngineSettings(channels_last=channels_last)
        together = values(
            dataset,
            replace(
                common,
                transforms=dict(zip(names, lists, strict=True)),
                views={"image": tuple(names)},
            ),
        )
        assert list(together) == names
        for name, compiled in zip(names, lists, strict=True):
            alone = values(dataset, replace(common, transforms={"image": compiled}))["image"]
            assert alone.std() > 10
            np.testing.assert_array_equal(together[name], alone, name)


@pytest.mark.parametrize("codec", ["jpeg", "blocks", "raw"])
def test_views_of_large_photos(tmp_path: Path, codec: Any) -> None:
    """A JPEG is decoded once for all views, at the smallest reduction that one of them has."""
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "0.jpg").write_bytes(jpeg(1600, 1700, 1, quality=95))
    lists = {
        "eighth": [fastio.Resize((64, 64))],
        "half": [fastio.Resize((300, 300))],
        "crop": [fastio.CenterCrop(64)],
        "corner": [fastio.RandomCrop(80)],
    }
    compiled = {name: compile(steps) for name, steps in lists.items()}
    fastio.pack(tmp_path / "photos", tmp_path / "packed", codec=codec)
    with fastio.open(tmp_path / "packed") as dataset:
        settings = EngineSettings(transforms=compiled, views={"image": tuple(lists)})
        together = values(dataset, settings)
        for name, each in compiled.items():
            alone = values(dataset, EngineSettings(transforms={"image": each}))["image"]
            if codec == "jpeg" and name in ("eighth", "half"):
                assert np.abs(together[name].astype(int) - alone).mean() < 4, name
            else:
                np.testing.assert_array_equal(together[name], alone, name)


def batches(source: Any, transforms: Any, batch_size: int | None = 4, **options: Any) -> list[Any]:
    options = {"shuffle": True, "seed": 3, "num_workers": 2} | options
    with Loader(source, batch_size, transforms=transforms, **options) as loader:
        return list(loader)


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [tensor for part in parts for tensor in flat(part)]


def equal(some: Any, others: Any) -> bool:
    left, right = flat(some), flat(others)
    return len(left) == len(right) and all(map(torch.equal, left, right))


def test_a_dict_of_views_is_delivered_as_a_dict(folder: Path) -> None:
    (views, labels), *_ = batches(folder, MULTI)
    assert labels.shape == (4,)
    assert list(views) == ["global", "local", "padded", "whole"]
    assert type(views["whole"]) is torch.Tensor
    assert isinstance(views["local"], list)
    shapes = [[tuple(each.shape) for each in flat(part)] for part in views.values()]
    assert shapes == [
        [(4, 3, 48, 48)] * 2,
        [(4, 3, 20, 20)] * 3,
        [(4, 3, 24, 24)],
        [(4, 3, 30, 40)],
    ]
    first, second = views["global"]
    assert not torch.equal(first, second)


def test_a_list_of_views_is_delivered_as_one_list(folder: Path) -> None:
    (views, _), *_ = batches(folder, Views([(2, GLOBAL), LOCAL]))
    assert isinstance(views, list)
    assert [tuple(each.shape) for each in views] == [(4, 3, 48, 48)] * 2 + [(4, 3, 20, 20)]
    ((one, label), *_) = batches(folder, Views([GLOBAL, LOCAL]), None)
    assert isinstance(one, list)
    assert [tuple(each.shape) for each in one] == [(3, 48, 48), (3, 20, 20)]
    assert isinstance(label, int)


def test_what_follows_the_views_is_done_to_each(folder: Path) -> None:
    normalize = fastio.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    plain = batches(folder, Views([GLOBAL, LOCAL]))
    own = batches(folder, Views([[*GLOBAL, normalize], LOCAL]))
    after = batches(folder, [Views([GLOBAL, LOCAL]), normalize])
    for (bytes_, _), (one, _), (both, _) in zip(plain, own, after, strict=True):
        assert [each.dtype for each in one] == [torch.float32, torch.uint8]
        assert equal([one[0], bytes_[1]], [both[0], one[1]])
        assert both[1].dtype == torch.float32
        mean = torch.tensor(normalize.mean)[:, None, None]
        std = torch.tensor(normalize.std)[:, None, None]
        for floats, source in zip(both, bytes_, strict=True):
            torch.testing.assert_close(floats, (source / 255 - mean) / std, atol=1e-5, rtol=1e-5)
    doubled = batches(folder, [Views([GLOBAL, LOCAL]), fastio.OnBatch(lambda x: x * 2)])
    assert equal(doubled[0][0], [each * 2 for each in plain[0][0]])


def test_views_depend_on_seed_epoch_row_and_view_alone(folder: Path) -> None:
    once = batches(folder, MULTI)
    assert equal(once, batches(folder, MULTI, num_workers=1))
    assert not equal(once, batches(folder, MULTI, seed=4))
    with Loader(folder, 4, transforms=MULTI, shuffle=True, seed=3) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with Loader(folder, 4, transforms=MULTI, shuffle=True, seed=3) as loader:
        loader.load_state_dict(state)
        assert equal(list(loader), once[1:])
        # A view keeps its draws when others are added behind it.
    assert equal([b[0]["global"] for b in once], [b[0] for b in batches(folder, Views(LISTS[:2]))])


def test_the_draws_of_each_view_are_told(folder: Path) -> None:
    steps = [fastio.RandomResizedCrop(32), fastio.RandomHorizontalFlip()]
    with Loader(folder, 4, transforms=Views({"a": (3, steps)}), seed=5) as loader:
        drawn = [loader.augmentation([2, 6], epoch=1, view=view) for view in range(3)]
        assert len({each[0].crop for each in drawn}) == 3
        for view in (-1, 3):
            with pytest.raises(IndexError, match="has 3"):
                loader.augmentation([2], epoch=1, view=view)
    with Loader(folder, 4, transforms=steps, seed=5) as loader:
        assert loader.augmentation([2, 6], epoch=1) == drawn[0]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_bad_image_is_left_out_of_all_views(tmp_path: Path, on_error: Any) -> None:
    (tmp_path / "a").mkdir()
    for row in range(4):
        data = photo(row)
        (tmp_path / "a" / f"{row}.jpg").write_bytes(data[:300] if row == 1 else data)
    good = batches(tmp_path, Views([GLOBAL, LOCAL]), 1, sampler=[0, 2, 3], shuffle=None)
    with pytest.raises(SampleError, match=r"1\.jpg"):
        batches(tmp_path, Views([GLOBAL, LOCAL]), shuffle=False)
    ((views, labels),) = batches(tmp_path, Views([GLOBAL, LOCAL]), shuffle=False, on_error=on_error)
    rows = [0, 1, 2] if on_error == "skip" else [0, 1, 1, 2]
    assert labels.shape == (len(rows),)
    for view, each in enumerate(views):
        assert equal(each, torch.cat([good[row][0][view] for row in rows]))


def test_collate_fn_gets_the_views_of_each_sample(folder: Path) -> None:
    seen: list[Any] = []

    def collate(samples: list[Any]) -> int:
        seen.extend(samples)
        return len(samples)

    plain = batches(folder, MULTI, shuffle=False)
    assert batches(folder, MULTI, shuffle=False, collate_fn=collate) == [4, 4, 4]
    views, label = seen[5]
    assert type(label) is int
    assert list(views) == ["global", "local", "padded", "whole"]
    want = [tensor[1] for tensor in flat(plain[1][0])]
    assert equal(views, want)


def test_sources_of_a_mix_have_views(folder: Path) -> None:
    with Loader(fastio.mix({str(folder): 1.0}), 4, transforms=MULTI, seed=1) as loader:
        (views, labels) = next(iter(loader))
    assert isinstance(views["local"], list)
    assert [tuple(each.shape) for each in views["local"]] == [(4, 3, 20, 20)] * 3
    assert len(labels) == 4
    with fastio.open(folder) as a, Loader(torch.utils.data.ConcatDataset([a, a]), 24) as plain:
        assert len(plain.dataset) == 24


def draws(image: npt.NDArray[np.uint8], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return np.concatenate([rng.random(2), np.array(image.shape[:2], np.float64)])


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_functions_for_single_samples_get_views(folder: Path, workers: Any) -> None:
    steps = [fastio.RandomResizedCrop(16), fastio.PerSample(draws, workers=workers)]
    views = Views({"a": (2, steps), "b": [fastio.Resize((8, 9)), *steps[1:]], "c": LOCAL})
    found = batches(folder, views)
    both = [each for batch, _ in found for each in batch["a"]]
    assert len({tuple(row) for tensor in both for row in tensor.tolist()}) == 24
    (first, _), *_ = found
    assert first["a"][0][:, 2:].tolist() == [[16, 16]] * 4
    assert first["b"][:, 2:].tolist() == [[8, 9]] * 4
    assert first["c"].shape == (4, 3, 20, 20)
    assert equal(found, batches(folder, views, num_workers=1))


def test_images_of_their_own_size_are_lists(folder: Path) -> None:
    (views, _), *_ = batches(
        folder, Views({"flipped": [fastio.RandomHorizontalFlip()], "b": LOCAL})
    )
    assert isinstance(views["flipped"], list)
    assert len(views["flipped"]) == 4
    assert len({tuple(each.shape) for each in views["flipped"]}) > 1


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of equal images."""
    path: Path = tmp_path_factory.mktemp("pairs") / "packed"
    schema = Schema({"image": fastio.Image(), "target": fastio.Image()}, "dict")
    with fastio.Writer(path, schema) as writer:
        for row in range(8):
            writer.write({"image": photo(row), "target": photo(row)})
    return path


@pytest.mark.parametrize("views", [False, True])
def test_two_fields_share_their_draws_where_asked(pairs: Path, views: bool) -> None:
    steps: Any = Views([GLOBAL, LOCAL]) if views else GLOBAL
    for shared, given in ((False, steps), (True, fastio.SameDraws("image", steps))):
        found = batches(pairs, {"image": steps, "target": given})
        assert equal([b["image"] for b in found], [b["target"] for b in found]) is shared
    nearest = [fastio.RandomResizedCrop(48, scale=(0.4, 1.0), interpolation="nearest"), GLOBAL[1]]
    transforms = {"image": GLOBAL, "target": fastio.SameDraws("image", nearest)}
    with Loader(pairs, 4, transforms=transforms, seed=3) as loader:
        next(iter(loader))
        image, target = (loader.augmentation([1, 5], field=name) for name in ("image", "target"))
    assert [each[:5] for each in image] == [each[:5] for each in target]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Views({}), "dict or a list"),
        (lambda: Views(3), "dict or a list"),
        (lambda: Views({1: LOCAL}), "names must be strings"),
        (lambda: Views([(0, LOCAL)]), "at least 1"),
        (lambda: Views([(2.0, LOCAL)]), "at least 1"),
        (lambda: Views([(True, LOCAL)]), "at least 1"),
        (lambda: Views([(257, LOCAL)]), "there can be 256"),
        (lambda: fastio.SameDraws(3, LOCAL), "name of a field"),
        (lambda: fastio.SameDraws("a", fastio.SameDraws("b", LOCAL)), "cannot stand inside"),
    ],
)
def test_impossible_views_are_refused(make: Any, words: str) -> None:
    with pytest.raises(TransformError, match=words):
        make()


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ([*LOCAL, Views([LOCAL])], "put Views first"),
        (Views([Views([LOCAL])]), "cannot stand inside"),
        ({"label": Views([LOCAL])}, "not one"),
        ({"image": fastio.SameDraws("nothing", LOCAL)}, "names the field 'nothing'|the field"),
        ({"image": [fastio.SameDraws("image", LOCAL)]}, "cannot stand inside"),
        (Views([[fastio.Normalize([0], [1]), *LOCAL]]), "comes after"),
    ],
)
def test_views_in_impossible_places_are_refused(folder: Path, transforms: Any, words: str) -> None:
    with pytest.raises(TransformError, match=words):
        Loader(folder, 4, transforms=transforms)


def test_256_views(folder: Path) -> None:
    ((views, _),) = batches(folder, Views([(256, LOCAL)]), 1, sampler=[0], shuffle=None)
    assert len(views) == 256
    assert len({tuple(each.flatten().tolist()) for each in views}) == 256


def names(views: Sequence[Any]) -> list[str]:
    return Views(views).names()


def test_views_are_named_by_their_place() -> None:
    assert names([LOCAL, (2, LOCAL)]) == ["[0]", "[1]", "[2]"]
    assert MULTI.names() == [
        "[global][0]", "[global][1]", "[local][0]", "[local][1]", "[local][2]", "[padded]",
        "[whole]",
    ]  # fmt: skip
    assert repr(MULTI) == "Views({'global': 2, 'local': 3, 'padded': 1, 'whole': 1})"
