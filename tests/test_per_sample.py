"""PerSample: Python functions for each sample, in threads and processes."""

from __future__ import annotations

import os
import pickle
import random
import signal
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastio
from fastio import CenterCrop, Loader, Normalize, OnBatch, PerSample, RandomCrop, Resize, ToDtype
from fastio.engine.batch import Batch
from tests.children import run_code
from tests.support import import_torchvision, numbered_folder, told

SMALL = [Resize((16, 12))]
ROWS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered_folder(tmp_path_factory.mktemp("data") / "images")


# Functions of samples, at the top of a module so that spawned processes have them.


def flipped(image: Any) -> Any:
    assert image.dtype == np.uint8
    assert image.shape == (16, 12, 3)
    return image[:, ::-1]


def noisy(image: Any, rng: np.random.Generator) -> Any:
    return image + rng.integers(0, 9, image.shape, np.uint8)


def drawn(image: Any, rng: np.random.Generator) -> float:
    return float(rng.random())


def drawn_from_globals(image: Any) -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def structured(image: Any) -> dict[str, Any]:
    return {
        "mean": image.mean(),
        "pair": (torch.from_numpy(image[0]), image.shape[0]),
        "name": f"{image[0, 0, 0]}",
        "as it is": image.astype(np.float32),
    }


class TensorsByName(MutableMapping[str, torch.Tensor]):
    """A mapping that takes tensors only, as a TensorDict."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}")
        self.tensors[name] = value

    def __delitem__(self, name: str) -> None:
        del self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def by_name(image: Any) -> TensorsByName:
    found = TensorsByName()
    found["corner"] = torch.from_numpy(image[0, 0].copy())
    return found


def of_own_size(image: Any) -> Any:
    return image[: 4 + image[0, 0, 0] // 16]


def row_of(image: Any) -> int:
    return int(told([torch.from_numpy(image).permute(2, 0, 1)])[0])


def fails_for_5(image: Any) -> Any:
    if row_of(image) == 5:
        raise ValueError("this one is not liked")
    return image


def killed_by_5(image: Any) -> Any:
    if row_of(image) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return image


def number_of_process(image: Any) -> int:
    return os.getpid()


def doubled(value: Any) -> Any:
    return 2 * value


def kind_of(image: Any) -> str:
    return type(image).__module__ + " " + type(image).__qualname__


def of_pillow(image: Image.Image) -> str:
    return kind_of(image)


def of_tensor(image: torch.Tensor) -> str:
    return kind_of(image)


@wraps(of_pillow)
def of_pillow_too(x: Any) -> str:
    return of_pillow(x)


def epoch(loader: Any) -> list[Any]:
    """The first fields of an epoch's batches."""
    return [batch[0] for batch in loader]


def all_equal(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


# What comes out


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_function_gets_each_decoded_image_and_gives_the_batch(folder: Path, workers: Any) -> None:
    with Loader(folder, 5, transforms=SMALL) as plain:
        expected = [images.flip(3) for images in epoch(plain)]
    step = PerSample(flipped, workers=workers, count=2)
    with Loader(folder, 5, transforms=[*SMALL, step]) as loader:
        for _ in range(2):
            found = epoch(loader)
            assert all_equal(found, expected)
            assert all(images.is_contiguous() for images in found)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_draws_do_not_depend_on_the_workers(folder: Path, workers: Any, count: int) -> None:
    def images(step: PerSample) -> list[Any]:
        options: dict[str, Any] = {"shuffle": True, "seed": 3}
        with Loader(folder, 5, transforms=[RandomCrop(8), step], **options) as loader:
            return [*epoch(loader), *epoch(loader)]

    found = images(PerSample(noisy, workers=workers, count=count))
    assert all_equal(found, images(PerSample(noisy, workers="threads", count=1)))
    assert not torch.equal(found[0], found[5])


def third(image: Any, doubled: bool = False, rng: Any = None) -> float:
    return drawn(image, rng) * (1 + doubled)


def only_named(image: Any, *, rng: np.random.Generator) -> float:
    return drawn(image, rng)


def after_size(image: Any, size: int, rng: np.random.Generator) -> float:
    return drawn(image, rng) * (size == 3)


def passing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return call


def fixing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(image: Any, scale: float = 1.0) -> Any:
        return function(image, np.random.default_rng(0)) * scale

    return call


def passing_named(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(image: Any, **options: Any) -> Any:
        return function(image, **options)

    return call


def passing_places(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


def sized(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(image: Any, size: int = 3) -> Any:
        return function(image, size, np.random.default_rng(0))

    return call


class Method:
    @passing
    def drawn(self, image: Any, rng: np.random.Generator) -> float:
        return drawn(image, rng)

    def __call__(self, image: Any, rng: np.random.Generator) -> float:
        return drawn(image, rng)


class Scaling:
    def call(self, image: Any, rng: np.random.Generator) -> float:
        return drawn(image, rng)

    @wraps(call)
    def __call__(self, image: Any, scale: float = 1.0) -> float:
        return self.call(image, np.random.default_rng(0)) * scale


@pytest.mark.parametrize(
    "function",
    [
        third,
        only_named,
        partial(after_size, size=3),
        passing(drawn),
        passing(only_named),
        partial(passing(after_size), size=3),
        passing_named(drawn),
        partial(passing_named(after_size), size=3),
        passing_places(drawn),
        Method().drawn,
        Method(),
        passing_named(Method()),
    ],
)
def test_rng_may_be_any_parameter(folder: Path, function: Callable[..., Any]) -> None:
    def images(function: Callable[..., Any]) -> list[Any]:
        steps = [*SMALL, PerSample(function, workers="threads")]
        with Loader(folder, 5, seed=3, transforms=steps) as loader:
            return epoch(loader)

    assert all_equal(images(function), images(drawn))


@pytest.mark.parametrize(
    "function",
    [
        fixing(drawn),
        passing(fixing(drawn)),
        fixing(passing(drawn)),
        lambda image, **options: drawn(image, np.random.default_rng(0)),
        partial(sized(after_size), size=3),
        passing_places(fixing(drawn)),
        Scaling(),
    ],
)
def test_a_function_that_has_an_rng_gets_none(folder: Path, function: Callable[..., Any]) -> None:
    with Loader(folder, 5, seed=3, transforms=[*SMALL, PerSample(function, "threads")]) as loader:
        values = [value for images, _ in loader for value in images.tolist()]
    assert values == [np.random.default_rng(0).random()] * ROWS


@pytest.mark.parametrize("function", [drawn, third, only_named, passing(drawn)])
def test_an_rng_that_partial_binds_is_kept(folder: Path, function: Callable[..., Any]) -> None:
    step = PerSample(partial(function, rng=np.random.default_rng(0)), "threads", count=1)
    with Loader(folder, 5, transforms=[*SMALL, step]) as loader:
        values = [value for images, _ in loader for value in images.tolist()]
    assert sorted(values) == sorted(np.random.default_rng(0).random(ROWS).tolist())


def test_each_row_epoch_and_place_in_the_list_draws_its_own(folder: Path) -> None:
    def second(value: float, rng: np.random.Generator) -> tuple[float, float]:
        return value, float(rng.random())

    values = set()
    with Loader(folder, 4, seed=1, transforms=[*SMALL, PerSample(drawn), second]) as loader:
        for _ in range(2):
            for (first, then), _ in loader:
                values |= {*first.tolist(), *then.tolist()}
    assert len(values) == 2 * 2 * ROWS


def test_rows_that_occur_twice_draw_twice(folder: Path) -> None:
    steps = [*SMALL, PerSample(drawn, workers="threads")]
    with Loader(folder, 4, seed=1, sampler=[7, 7, 7, 7], transforms=steps) as loader:
        ((values, _),) = loader
    assert len(set(values.tolist())) == 4


def test_an_epoch_continues_in_the_middle_with_the_same_draws(folder: Path) -> None:
    options: dict[str, Any] = {"shuffle": True, "transforms": [*SMALL, PerSample(noisy)]}
    with Loader(folder, 4, seed=5, **options) as loader:
        whole = epoch(loader)
    with Loader(folder, 4, seed=5, **options) as loader:
        batches = iter(loader)
        begun = [next(batches)[0] for _ in range(2)]
        state = loader.state_dict()
    with Loader(folder, 4, **options) as loader:
        loader.load_state_dict(state)
        assert all_equal([*begun, *epoch(loader)], whole)


def test_global_generators_are_seeded_for_each_sample_in_processes(folder: Path) -> None:
    def values(count: int) -> list[Any]:
        steps = [*SMALL, PerSample(drawn_from_globals, count=count)]
        with Loader(folder, 8, seed=2, transforms=steps) as loader:
            return [torch.stack(found, 1) for found in epoch(loader)]

    assert all_equal(values(1), values(2))
    assert torch.cat(values(1)).unique().numel() == 3 * ROWS


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_structures_are_collated(folder: Path, workers: Any) -> None:
    with Loader(folder, 6, transforms=SMALL) as plain:
        images = epoch(plain)
    with Loader(folder, 6, transforms=[*SMALL, PerSample(structured, workers=workers)]) as loader:
        found = epoch(loader)
    for batch, expected in zip(found, images, strict=True):
        assert torch.equal(batch["as it is"], expected.permute(0, 2, 3, 1).float())
        assert torch.allclose(batch["mean"], expected.double().mean((1, 2, 3)))
        row, height = batch["pair"]
        assert torch.equal(row, expected[:, :, 0].permute(0, 2, 1))
        assert height.tolist() == [16] * 6
        assert batch["name"] == [str(image[0, 0, 0].item()) for image in expected]


def reward(row: int) -> float:
    return row / 2 if row % 2 else row // 2


def beyond_64_bits(row: int) -> int:
    return 2**63 + 1 if row % 2 else -1


def test_numbers_of_python_are_one_tensor_unless_it_would_round_integers() -> None:
    rows = {"row": np.arange(4)}
    with fastio.Loader(rows, 4, transforms={"row": fastio.PerSample(reward, "threads")}) as loader:
        (batch,) = loader
    assert batch["row"].tolist() == [0.0, 0.5, 1.0, 1.5]
    large = fastio.PerSample(beyond_64_bits, "threads")
    with fastio.Loader(rows, 4, transforms={"row": large}) as loader:
        (batch,) = loader
    assert batch["row"] == [-1, 2**63 + 1, -1, 2**63 + 1]


def no_boxes(row: int) -> Any:
    return np.zeros((0, 4), np.float32)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_results_may_all_be_empty_arrays(workers: Any) -> None:
    step = fastio.PerSample(no_boxes, workers, count=1)
    with fastio.Loader({"row": np.arange(6)}, 2, transforms={"row": step}) as loader:
        for _ in range(2):  # by now, the sizes of results are known
            assert [batch["row"].shape for batch in loader] == [(2, 0, 4)] * 3


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_mappings_of_classes_that_are_not_known_come_as_they_are(
    folder: Path, workers: Any
) -> None:
    with Loader(folder, 6, transforms=SMALL) as plain:
        images = epoch(plain)
    with Loader(folder, 6, transforms=[*SMALL, PerSample(by_name, workers=workers)]) as loader:
        found = epoch(loader)
    for batch, expected in zip(found, images, strict=True):
        assert [type(each) for each in batch] == [TensorsByName] * 6
        assert all_equal([each["corner"] for each in batch], list(expected[:, :, 0, 0]))


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_results_of_different_sizes_are_a_list(folder: Path, workers: Any) -> None:
    with Loader(folder, 6, transforms=SMALL) as plain:
        expected = epoch(plain)
    with Loader(folder, 6, transforms=[*SMALL, PerSample(of_own_size, workers=workers)]) as loader:
        found = epoch(loader)
    for images, whole in zip(found, expected, strict=True):
        kept = [image[:, : 4 + int(image[0, 0, 0]) // 16] for image in whole]
        assert all_equal(list(images), kept)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_images_of_different_sizes_go_through(folder: Path, workers: Any) -> None:
    with Loader(folder, 5) as plain, Loader(folder, 5, transforms=PerSample(np.flipud)) as loader:
        for images, expected in zip(epoch(loader), epoch(plain), strict=True):
            assert all_equal(list(images), [image.flip(1) for image in expected])


def test_steps_on_the_batch_follow(folder: Path) -> None:
    after = [ToDtype("float32", scale=True), Normalize((0.5,) * 3, (0.25,) * 3), OnBatch(doubled)]
    with Loader(folder, 5, transforms=[*SMALL, *after]) as plain:
        expected = [images.flip(3) for images in epoch(plain)]
    with Loader(folder, 5, transforms=[*SMALL, PerSample(flipped), *after]) as loader:
        found = epoch(loader)
        assert loader.stats().transforms.endswith("OnBatch(doubled) on the batch")
    for images, other in zip(found, expected, strict=True):
        assert torch.allclose(images, other, atol=1e-6)


def test_channels_last_is_kept(folder: Path) -> None:
    with Loader(folder, 5, transforms=[*SMALL, PerSample(flipped)], channels_last=True) as loader:
        for images in epoch(loader):
            assert images.is_contiguous(memory_format=torch.channels_last)


def test_a_function_may_be_for_a_field_that_is_no_image(folder: Path) -> None:
    transforms = {"image": SMALL, "label": [PerSample(doubled, count=1)]}
    with Loader(folder, 12, transforms=transforms) as loader:
        assert [label for _, labels in loader for label in labels.tolist()] == (
            [0] * 9 + [2] * 7 + [4] * 8
        )


def test_samples_are_handed_to_collate_fn_as_the_function_returned_them(folder: Path) -> None:
    steps = [*SMALL, PerSample(structured)]
    with Loader(folder, 5, transforms=steps, collate_fn=list) as loader:
        sample, label = next(iter(loader))[0]
    assert isinstance(sample["as it is"], np.ndarray)
    assert isinstance(sample["pair"][0], torch.Tensor)
    assert sample["pair"][1] == 16
    assert label == 0


def test_functions_of_fields_that_are_not_delivered_are_not_called(folder: Path) -> None:
    transforms = {"image": [*SMALL, fails_for_5], "label": doubled}
    with Loader(folder, ROWS, transforms=transforms, fields=["label"]) as loader:
        ((labels,),) = loader
    assert labels.tolist() == [0] * 9 + [2] * 7 + [4] * 8


def test_a_loader_that_was_pickled_calls_functions_too(folder: Path) -> None:
    steps = [*SMALL, PerSample(flipped, count=1)]
    with Loader(folder, 5, transforms=steps) as loader:
        expected = epoch(loader)
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert all_equal(epoch(copy), expected)


def test_a_single_sample_without_a_batch(folder: Path) -> None:
    with Loader(folder, None, transforms=[*SMALL, PerSample(flipped)]) as loader:
        image, label = next(iter(loader))
    assert image.shape == (3, 16, 12)
    assert label == 0


def test_the_annotation_or_an_option_says_what_the_function_gets(folder: Path) -> None:
    vision = import_torchvision()
    expected = {
        PerSample(kind_of): "numpy ndarray",
        PerSample(of_pillow): "PIL.Image Image",
        PerSample(of_pillow_too): "PIL.Image Image",
        PerSample(of_tensor): "torch Tensor",
        PerSample(kind_of, sample="pillow"): "PIL.Image Image",
        PerSample(kind_of, sample="tv_tensor"): f"{vision.tv_tensors.Image.__module__} Image",
    }
    for step, kind in expected.items():
        with Loader(folder, 4, transforms=[*SMALL, step]) as loader:
            assert next(iter(loader))[0] == [kind] * 4


def test_a_process_that_is_not_forked_imports_torchvision_for_its_images(
    folder: Path, tmp_path: Path
) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tv_tensors.py").write_text("class Image:\n    def __init__(self, data): pass\n")
    code = """
import sys
sys.path.insert(0, sys.argv[2])
import fastio
from tests.test_per_sample import SMALL, kind_of

if __name__ == "__main__":
    step = fastio.PerSample(kind_of, sample="tv_tensor", count=1)
    with fastio.Loader(
        sys.argv[1], 4, transforms=[*SMALL, step], multiprocessing_context="spawn"
    ) as loader:
        print(next(iter(loader))[0])
"""
    done = run_code(code, folder, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == str(["torchvision.tv_tensors Image"] * 4)


def test_any_callable_in_a_list_runs_per_sample(folder: Path) -> None:
    with Loader(folder, 5, transforms=[*SMALL, PerSample(flipped)]) as loader:
        expected = epoch(loader)
    with Loader(folder, 5, transforms=[*SMALL, flipped]) as loader:
        assert all_equal(epoch(loader), expected)
        assert "flipped per sample in" in loader.stats().transforms


# Workers


@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.long)]
)
def test_processes_are_started_as_the_context_says(folder: Path, method: str) -> None:
    steps = [*SMALL, PerSample(noisy, count=1)]
    options: dict[str, Any] = {"seed": 1, "transforms": steps}
    with Loader(folder, 9, **options) as loader:
        expected = epoch(loader)
    with Loader(folder, 9, multiprocessing_context=method, **options) as loader:
        assert all_equal(epoch(loader), expected)


def test_a_function_that_cannot_be_sent_to_spawned_processes_is_refused(folder: Path) -> None:
    steps = [*SMALL, PerSample(lambda image: image)]
    with (
        Loader(folder, 9, multiprocessing_context="spawn", transforms=steps) as loader,
        pytest.raises(fastio.TransformError, match="at the top of a module"),
    ):
        next(iter(loader))


def test_processes_persist_over_epochs_and_end_with_the_loader(folder: Path) -> None:
    steps = [*SMALL, PerSample(number_of_process, count=2)]
    with Loader(folder, 3, transforms=steps) as loader:
        pids = [{int(pid) for pids in epoch(loader) for pid in pids} for _ in range(3)]
    assert len(set.union(*pids)) <= 2
    for pid in set.union(*pids):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_each_process_calls_worker_init_fn(folder: Path, tmp_path: Path) -> None:
    """It may ask torch which worker it is, as timm's does."""

    def init(number: int) -> None:
        info: Any = torch.utils.data.get_worker_info()
        assert (info.id, info.num_workers, info.dataset) == (number, 2, None)
        np.random.seed(info.seed % (2**32 - 1))
        (tmp_path / str(number)).touch()

    steps = [*SMALL, PerSample(flipped, count=2)]
    with Loader(folder, 3, transforms=steps, worker_init_fn=init) as loader:
        epoch(loader)
    assert {path.name for path in tmp_path.iterdir()} <= {"0", "1"}
    assert list(tmp_path.iterdir())


def test_two_iterators_and_one_left_in_the_middle(folder: Path) -> None:
    with Loader(folder, 3, transforms=[*SMALL, PerSample(flipped, count=2)]) as loader:
        whole = epoch(loader)
        one, other = iter(loader), iter(loader)
        mixed = [next(each)[0] for _ in range(3) for each in (one, other)]
        del one
        assert all_equal(mixed, [images for images in whole[:3] for _ in range(2)])
        assert all_equal([images for images, _ in other], whole[3:])
        assert all_equal(epoch(loader), whole)


# Errors


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_an_error_names_the_row_the_file_and_the_place_in_the_function(
    folder: Path, workers: Any
) -> None:
    steps = [*SMALL, PerSample(fails_for_5, workers=workers)]
    with Loader(folder, 4, transforms=steps) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(fastio.PerSampleError) as caught:
            next(batches)
        assert len(list(batches)) == 4
    message = str(caught.value)
    assert message.startswith(f"{folder}/class0/005.jpg: fails_for_5 raised ValueError: this one")
    assert "in fails_for_5" in message
    assert "(row 5 of" in message
    assert caught.value.row == 5
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_unexpected_error_keeps_its_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(batch: Batch, bad: list[int], good: Any) -> None:
        raise TypeError("a mistake")

    monkeypatch.setattr(Batch, "replace", broken)
    steps = [*SMALL, PerSample(fails_for_5, workers="threads")]
    with Loader(folder, 4, transforms=steps, on_error="replace") as loader:
        with pytest.raises(TypeError, match="a mistake") as caught:
            list(loader)
        assert caught.traceback[-1].name == "broken"


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_samples_that_a_function_fails_for_can_be_skipped(folder: Path, workers: Any) -> None:
    steps = [*SMALL, PerSample(fails_for_5, workers=workers)]
    with Loader(folder, 4, transforms=steps, on_error="skip") as loader:
        found = epoch(loader)
        assert loader.stats().skipped == 1
    assert [row for images in found for row in told(images)] == [*range(5), *range(6, ROWS)]


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_samples_that_a_function_fails_for_can_be_replaced(folder: Path, workers: Any) -> None:
    steps = [*SMALL, PerSample(fails_for_5, workers=workers)]
    with Loader(folder, 4, transforms=steps, on_error="replace") as loader:
        found, rows = [], []
        for images, _ in loader:
            found += told(images)
            rows += loader.batch.rows.tolist()
            if 6 in rows[-4:]:
                assert [error.row for error in loader.batch.errors] == [5]
    assert found == rows == [*range(5), 6, *range(6, ROWS)]


def test_a_result_that_cannot_be_pickled_is_an_error_of_its_sample(folder: Path) -> None:
    def odd(image: Any) -> Any:
        return (lambda: 3) if row_of(image) == 5 else image

    with Loader(folder, 4, transforms=[*SMALL, PerSample(odd)], on_error="skip") as loader:
        found = epoch(loader)
    assert sum(map(len, found)) == ROWS - 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_that_is_killed_is_an_error_with_a_name_and_another_takes_its_place(
    folder: Path, count: int
) -> None:
    steps = [*SMALL, PerSample(killed_by_5, count=count)]
    with Loader(folder, 4, transforms=steps) as loader:
        for _ in range(2):
            found: list[int] = []
            errors = []
            batches = iter(loader)
            while True:
                try:
                    images, _ = next(batches)
                except StopIteration:
                    break
                except fastio.WorkerDied as error:
                    errors.append(error)
                else:
                    found += told(images)
            assert found == [*range(4), *range(8, ROWS)]
            (error,) = errors
            assert "of PerSample(killed_by_5) was killed by SIGKILL" in str(error)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_function_that_leaves_the_interpreter_is_an_error(folder: Path, workers: Any) -> None:
    def leaves(image: Any) -> Any:
        raise SystemExit(3)

    steps = [*SMALL, PerSample(leaves, workers=workers, count=1)]
    with (
        Loader(folder, 4, transforms=steps) as loader,
        pytest.raises(fastio.WorkerDied, match=r"SystemExit|exit code 3"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerSample(3), "takes a callable"),  # type: ignore[arg-type]
        (lambda: PerSample(abs, workers="fibers"), "workers must be one of"),  # type: ignore[arg-type]
        (lambda: PerSample(abs, workers="interpreters"), "needs subinterpreters"),
        (lambda: PerSample(abs, count=0), "count must be at least 1"),
        (lambda: PerSample(abs, sample="list"), "sample must be one of"),  # type: ignore[arg-type]
    ],
)
def test_arguments_are_checked(make: Callable[[], PerSample], message: str) -> None:
    with pytest.raises(fastio.TransformError, match=message):
        make()


def test_crops_come_before_functions(folder: Path) -> None:
    with pytest.raises(fastio.TransformError, match=r"CenterCrop.* comes after PerSample\(flip"):
        Loader(folder, 4, transforms=[*SMALL, PerSample(flipped), CenterCrop(4)])


# ImageFolders with transforms that fastio does not know


class Swapped:
    """Swaps channels of PIL images, as a user's own transform of an ImageFolder might."""

    def __call__(self, image: Image.Image) -> Image.Image:
        red, green, blue = image.split()
        return Image.merge("RGB", (blue, red, green))


class Jittered:
    """Draws from the global generators."""

    def __call__(self, image: Any) -> Any:
        return image * float(torch.rand(())) + np.random.rand() + random.random()


def test_an_image_folder_gives_what_its_transform_gives_by_hand(folder: Path) -> None:
    vision = import_torchvision()
    known = vision.transforms
    after = [Swapped(), known.Pad(2), known.ToTensor(), known.Normalize([0.5] * 3, [0.25] * 3)]
    crops = [known.Resize(20), known.CenterCrop(16)]
    dataset = vision.datasets.ImageFolder(folder, known.Compose([*crops, *after]))
    by_hand = known.Compose(after)
    with Loader(folder, 5, transforms=[Resize(20), CenterCrop(16)]) as plain:
        expected = [
            torch.stack([by_hand(Image.fromarray(x.permute(1, 2, 0).numpy())) for x in images])
            for images in epoch(plain)
        ]
    with Loader(dataset, 5) as loader:
        assert loader.path == "native"
        assert all_equal(epoch(loader), expected)


def test_a_pipeline_of_tensors_gets_tensors(folder: Path) -> None:
    vision = import_torchvision()
    v2 = vision.transforms.v2
    steps = [v2.ToImage(), v2.Resize((8, 8)), kind_of]
    dataset = vision.datasets.ImageFolder(folder, v2.Compose(steps))
    with Loader(dataset, 4) as loader:
        kinds, _ = next(iter(loader))
    assert kinds == [f"{vision.tv_tensors.Image.__module__} Image"] * 4


def test_a_target_transform_is_called_for_each_label(folder: Path) -> None:
    vision = import_torchvision()
    dataset = vision.datasets.ImageFolder(
        folder,
        vision.transforms.Compose([vision.transforms.Resize((8, 8)), vision.transforms.ToTensor()]),
        target_transform=lambda label: (label, f"class {label}"),
    )
    with Loader(dataset, 12) as loader:
        assert loader.path == "native"
        images, (labels, names) = next(iter(loader))
    assert images.dtype == torch.float32
    assert labels.tolist() == [0] * 9 + [1] * 3
    assert names == ["class 0"] * 9 + ["class 1"] * 3


def test_random_steps_of_a_pipeline_do_not_depend_on_the_number_of_workers(folder: Path) -> None:
    vision = import_torchvision()
    known = vision.transforms
    steps = known.Compose([known.Resize((8, 8)), known.ToTensor(), Jittered()])
    dataset = vision.datasets.ImageFolder(folder, steps)
    found = []
    for workers in (1, 2):
        with Loader(dataset, 5, seed=1, num_workers=workers) as loader:
            found.append(epoch(loader))
    assert all_equal(*found)


# Images of unlike sizes


def unlike_images(folder: Path, large: int) -> Path:
    """24 images of 4 x 4 pixels but for the row 12, which is larger."""
    for row in range(ROWS):
        size = large if row == 12 else 4
        image = Image.new("RGB", (size, size), (row, 0, 0))
        (folder / "a").mkdir(parents=True, exist_ok=True)
        image.save(folder / "a" / f"{row:03}.png")
    return folder


def as_it_is(image: Any) -> Any:
    return image


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_result_larger_than_those_before_it_is_delivered(tmp_path: Path, workers: Any) -> None:
    step = PerSample(as_it_is, workers=workers, count=1)
    with Loader(unlike_images(tmp_path, 9), 4, transforms=[step]) as loader:
        for _ in range(2):
            images = [image for batch in epoch(loader) for image in batch]
            assert [tuple(image.shape) for image in images] == [
                (3, 9, 9) if row == 12 else (3, 4, 4) for row in range(ROWS)
            ]
            assert [int(image[0, 0, 0]) for image in images] == list(range(ROWS))


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_one_large_image_does_not_take_the_memory_of_a_batch_of_them(
    tmp_path: Path, workers: Any
) -> None:
    unlike_images(tmp_path, 4000)  # 46 MiB
    code = f"""
import resource, sys
import ctypes
import fastio
from tests.test_per_sample import as_it_is

# glibc reserves 64 MiB of addresses for each thread that meets another one in malloc.
M_ARENA_MAX = -8
ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

def mapped():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

step = fastio.PerSample(as_it_is, workers={workers!r}, count=1)
with fastio.Loader(sys.argv[1], 24, num_workers=1, transforms=[step]) as loader:
    for images, _ in loader:
        del images
    before = mapped()
    for _ in range(2):
        for images, _ in loader:
            del images
    print(mapped() - before)
"""
    done = run_code(code, str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 700 << 20  # 24 x 46 MiB are 1,100
