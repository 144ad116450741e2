"""Mixup and CutMix are torchvision's for equal parameters, and drawn by seed, epoch, rank, step."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fastio
from fastio import CutMix, Loader, Mixup, RandomChoice
from fastio.transforms import StepDraw
from fastio.transforms.batches import mixing_of
from tests.support import import_torchvision

CLASSES = 5
SIZE = [fastio.Resize((8, 12))]
FLOATS = [*SIZE, fastio.ToDtype("float32", scale=True)]


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    fastio.pack(folder, folder.parent / "packed")
    return folder.parent / "packed"


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(6, 3, 10, 14, generator=rng), torch.randint(CLASSES, (6,), generator=rng)


@pytest.mark.parametrize("kind", [Mixup, CutMix])
@pytest.mark.parametrize("soft", [False, True])
def test_equal_parameters_give_torchvisions_batch(kind: Any, soft: bool) -> None:
    v2 = import_torchvision().transforms.v2
    theirs = (v2.MixUp if kind is Mixup else v2.CutMix)(alpha=1.0, num_classes=CLASSES)
    for step in range(20):
        images, labels = batch(step)
        if soft:
            labels = torch.nn.functional.one_hot(labels, CLASSES).float()
        draw = StepDraw(1, 2, 3, step)
        mix = kind(num_classes=CLASSES)
        mixed = mix.drawn(draw, 10, 14)
        params: dict[str, Any] = {"labels": labels, "batch_size": 6, "lam": mixed.weight}
        if mixed.box is not None:
            top, left, bottom, right = mixed.box
            params |= {"box": (left, top, right, bottom), "lam_adjusted": mixed.weight}
        found = mix((images.clone(), labels.clone()), draw)
        torch.testing.assert_close(found[0], theirs.transform(images, params))
        torch.testing.assert_close(found[1], theirs.transform(labels, params))


def test_weights_and_boxes_have_torchvisions_distributions() -> None:
    torch.manual_seed(0)
    v2 = import_torchvision().transforms.v2
    draws = [StepDraw(5, 0, 0, step) for step in range(3000)]
    weights = np.sort([Mixup(0.4).drawn(draw, 20, 30).weight for draw in draws])  # type: ignore[union-attr]
    theirs = np.sort(np.random.default_rng(1).beta(0.4, 0.4, 3000))
    assert np.abs(weights - theirs).max() < 0.1
    boxes = np.array([CutMix().drawn(draw, 20, 30).box for draw in draws])  # type: ignore[union-attr]
    cut = v2.CutMix(num_classes=2)
    other = np.array([cut.make_params([torch.zeros(1, 3, 20, 30)])["box"] for _ in range(3000)])
    other = other[:, [1, 0, 3, 2]]
    assert np.abs(np.sort(boxes, 0) - np.sort(other, 0)).mean() < 0.5
    mixed = [Mixup(p=0.3).drawn(draw, 4, 4) is not None for draw in draws]
    assert abs(sum(mixed) - 900) < 5 * np.sqrt(3000 * 0.21)


@pytest.mark.parametrize("kind", ["folder", "packed", "torch"])
def test_batches_depend_on_seed_epoch_and_step_and_resume(
    folder: Path, packed: Path, kind: str
) -> None:
    both = RandomChoice([Mixup(num_classes=CLASSES), CutMix(num_classes=CLASSES)], [1, 2])
    source: Any = {"folder": folder, "packed": packed}.get(kind)
    transforms: Any = {"image": FLOATS, None: both}
    if kind == "torch":
        source = TensorDataset(torch.rand(24, 3, 8, 12), torch.arange(24) % CLASSES)
        transforms = {None: both}

    def loader(seed: int = 3, **options: Any) -> Loader:
        return Loader(source, 5, shuffle=True, seed=seed, transforms=transforms, **options)

    with loader() as one, loader() as other, loader(4) as third:
        first, again, different = list(one), list(other), list(third)
        following = list(one)
    assert all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
        for a, b in zip(first, again, strict=True)
    )
    assert not torch.equal(first[0][1], different[0][1])
    assert not torch.equal(first[0][1], following[0][1])
    assert first[0][1].shape == (5, CLASSES)
    torch.testing.assert_close(first[0][1].sum(1), torch.ones(5))
    with loader() as one:
        batches = iter(one)
        next(batches)
        next(batches)
        state = one.state_dict()
    with loader() as other:
        other.load_state_dict(state)
        rest = list(other)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first[2:], rest, strict=True))


def test_ranks_draw_differently(packed: Path) -> None:
    weights = []
    for rank in range(2):
        with Loader(
            packed, 6, shuffle=True, seed=1, rank=rank, world_size=2,
            transforms={"image": FLOATS, None: Mixup(num_classes=CLASSES)},
        ) as loader:  # fmt: skip
            weights.append(next(iter(loader))[1].max(1).values)
    assert not torch.equal(*weights)


def test_torchvisions_own_objects_are_drawn_by_the_seed(packed: Path) -> None:
    v2 = import_torchvision().transforms.v2
    choice = v2.RandomChoice([v2.CutMix(num_classes=CLASSES), v2.MixUp(num_classes=CLASSES)])
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)  # has no effect
        with Loader(packed, 6, seed=1, transforms={"image": FLOATS, None: choice}) as loader:
            found.append(list(loader))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(*found, strict=True))


def test_a_labels_getter_of_torchvision_says_where_the_labels_are() -> None:
    v2 = import_torchvision().transforms.v2
    own = v2.MixUp(num_classes=5, labels_getter=lambda batch: batch[2])
    assert mixing_of(own) is None
    assert mixing_of(v2.MixUp(num_classes=5)) == fastio.Mixup(num_classes=5)
    arrays = (np.ones((4, 3, 2, 2), np.float32), np.arange(4), np.full(4, 3))
    with fastio.Loader(arrays, 4, transforms={None: own}) as loader:
        (batch,) = loader
    assert batch[1].tolist() == [0, 1, 2, 3]
    assert batch[2].tolist() == [[0, 0, 0, 1, 0]] * 4


@pytest.mark.parametrize("kind", ["folder", "packed", "torch"])
def test_classes_are_counted_by_their_names(folder: Path, packed: Path, kind: str) -> None:
    source: Any = {"folder": folder, "packed": packed}.get(kind)
    mix = RandomChoice([Mixup(), CutMix()])
    transforms: Any = {"image": FLOATS, None: mix}
    if kind == "torch":
        source = TensorDataset(torch.rand(24, 3, 8, 12), torch.arange(24) % 3)
        source.classes = ["class0", "class1", "class2"]
        transforms = {None: mix}
    with Loader(source, 5, seed=3, transforms=transforms) as loader:
        assert {tuple(labels.shape) for _, labels in loader} == {(5, 3), (4, 3)}
    with Loader(source, 5, seed=3, transforms={**transforms, None: Mixup(num_classes=7)}) as loader:
        assert next(iter(loader))[1].shape == (5, 7)


@pytest.mark.parametrize("kind", ["packed", "torch"])
@pytest.mark.parametrize("seed", [3, None])
def test_the_loader_tells_how_a_batch_was_mixed(packed: Path, kind: str, seed: int | None) -> None:
    source: Any = packed
    transforms: Any = {"image": FLOATS, None: [CutMix(num_classes=3, p=0.5)]}
    if kind == "torch":
        source = TensorDataset(torch.rand(24, 3, 8, 12), torch.arange(24) % 3)
        transforms = {None: CutMix(num_classes=3, p=0.5)}
    drawn = []
    for torch_seed in (1, 1, 2):
        torch.manual_seed(torch_seed)
        with Loader(source, 4, shuffle=True, seed=seed, transforms=transforms) as loader:
            with pytest.raises(RuntimeError, match="no batch"):
                loader.mixing((8, 12))
            told = []
            for _, labels in loader:
                [mixed] = loader.mixing((8, 12))
                weights = {1.0} if mixed is None else {mixed.weight, 1 - mixed.weight, 1.0}
                found = set(labels[labels > 0].double().tolist())
                assert all(min(abs(each - weight) for weight in weights) < 1e-6 for each in found)
                told.append(mixed)
            assert [loader.mixing((8, 12), step)[0] for step in range(6)] == told
            assert None in told or seed is None
        drawn.append(told)
    assert drawn[0] == drawn[1]
    assert (drawn[0] == drawn[2]) == (seed is not None)
    with Loader(packed, 4, transforms=SIZE) as loader:
        next(iter(loader))
        assert loader.mixing((8, 12)) == []


def test_label_smoothing_is_that_of_cross_entropy() -> None:
    images, labels = batch()
    _, smooth = Mixup(num_classes=CLASSES, p=0.0, label_smoothing=0.2)(
        (images, labels), StepDraw(0, 0, 0, 0)
    )
    scores = torch.randn(6, CLASSES)
    torch.testing.assert_close(
        torch.nn.functional.cross_entropy(scores, smooth),
        torch.nn.functional.cross_entropy(scores, labels, label_smoothing=0.2),
    )


def test_dicts_name_their_parts_and_nothing_is_changed_in_place() -> None:
    images, labels = batch()
    kept = images.clone()
    draw = StepDraw(0, 0, 0, 0)
    for name, other in (("image", "label"), ("pixels", "target")):
        found = CutMix(num_classes=CLASSES)({name: images, other: labels, "id": labels}, draw)
        assert found[other].shape == (6, CLASSES)
        assert torch.equal(found["id"], labels)
    found = Mixup(num_classes=CLASSES, image="a", label="b")({"a": images, "b": labels}, draw)
    assert found["b"].shape == (6, CLASSES)
    assert torch.equal(images, kept)


def test_wrong_batches_and_parameters_are_named(packed: Path) -> None:
    images, labels = batch()
    draw = StepDraw(0, 0, 0, 0)
    wrong: list[tuple[Any, str]] = [
        (lambda: Mixup(0), "alpha"),
        (lambda: CutMix(p=2), "p must be"),
        (lambda: Mixup(num_classes=0), "num_classes"),
        (lambda: Mixup(label_smoothing=1.0), "label_smoothing"),
        (lambda: Mixup()((images, labels), draw), "num_classes must be given"),
        (lambda: Mixup(num_classes=2)((images, labels + 2), draw), "of 2 classes"),
        (lambda: Mixup(num_classes=9)((images.byte(), labels), draw), "must be floats"),
        (lambda: CutMix(num_classes=9)(images, draw), "images and labels"),
        (lambda: CutMix(num_classes=9)({"x": images, "y": labels}, draw), "name image= and label="),
        (lambda: CutMix(num_classes=9)((images, labels[:3]), draw), "6 images and 3 labels"),
        (lambda: Loader(packed, 4, transforms=[Mixup(num_classes=9)]), "None"),
    ]
    for make, message in wrong:
        with pytest.raises(fastio.TransformError, match=message):
            make()
    assert pickle.loads(pickle.dumps(CutMix(num_classes=9))) == CutMix(num_classes=9)


@pytest.mark.parametrize("kind", [Mixup, CutMix])
@pytest.mark.parametrize("label", [-1, CLASSES, 1 << 40])
def test_labels_of_no_class_are_refused(kind: Any, label: int) -> None:
    labels = torch.tensor([0, label])
    with pytest.raises(fastio.TransformError, match=f"label {label} of {CLASSES} classes"):
        kind(num_classes=CLASSES)((torch.zeros(2, 3, 4, 4), labels), StepDraw(0, 0, 0, 0))
