"""Augmentation as a stage of its own: found in the user's transforms, timed, predicted, told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import fastio
from fastio import OptionError, Stats
from fastio.diagnose import Facts, Use, diagnose, diagnose_stats, expected
from fastio.diagnose.costs import Costs, costs
from fastio.diagnose.facts import StepFacts
from fastio.diagnose.imagesteps import ImageSteps, spelled
from fastio.diagnose.probes import examine
from fastio.diagnose.report.report import fact_lines
from tests.doctor_facts import FAULTLESS, FOLDER, IMAGES
from tests.measurements import ROWS, measured, phase
from tests.support import import_torchvision, numbered_folder

STEPS = (
    StepFacts("decode", "decode", 0.004),
    StepFacts("RandomResizedCrop", "crop", 0.001),
    StepFacts("RandAugment", "augment", 0.003),
    StepFacts("ColorJitter", "augment", 0.002),
)
# 100 images/s of a worker, and four workers beside 2,000 images/s of fastio.
AUGMENTED = replace(
    FAULTLESS,
    data=FOLDER,
    images=replace(IMAGES, pillow_rate=100.0, steps=STEPS, augment_share=0.2, trials=()),
)


@pytest.fixture
def script() -> Iterator[Any]:
    """A module of the user's, "usersown"."""
    module: Any = ModuleType("usersown")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def rotated(image: Any) -> Any:
    return image.rotate(3)


# --- What the user's transforms are ---------------------------------------------------------------


def test_steps_are_told_apart_by_what_they_do(script: Any) -> None:
    v = import_torchvision().transforms
    script.train = v.Compose(
        [v.RandomResizedCrop(16), v.RandAugment(), rotated, v.ToTensor(), v.Normalize([0.5], [0.5])]
    )
    steps = ImageSteps.named("usersown:train")
    assert [(step.name, step.kind) for step in steps.python] == [
        ("RandomResizedCrop", "crop"),
        ("RandAugment", "augment"),
        ("rotated", "python"),
        ("ToTensor", "convert"),
        ("Normalize", "convert"),
    ]


def test_transforms_inside_others_are_named(script: Any) -> None:
    v = import_torchvision().transforms
    assert spelled(v.RandomApply([v.ColorJitter(0.4)])) == "RandomApply(ColorJitter)"


@pytest.mark.parametrize("form", ["dataset", "loader", "function", "list"])
def test_transforms_are_found_in_what_has_them(script: Any, tmp_path: Path, form: str) -> None:
    torchvision = import_torchvision()
    v = torchvision.transforms
    chain = v.Compose([v.CenterCrop(16), v.ColorJitter(0.4), v.ToTensor()])
    dataset = torchvision.datasets.ImageFolder(str(numbered_folder(tmp_path)), chain)
    script.named = {
        "dataset": dataset,
        "loader": DataLoader(dataset),
        "function": lambda: dataset,
        "list": chain.transforms,
    }[form]
    names = [step.name for step in ImageSteps.named("usersown:named").python]
    assert names == ["CenterCrop", "ColorJitter", "ToTensor"]


def test_fastios_own_transforms_run_in_a_loader_only(script: Any) -> None:
    script.train = [fastio.RandomResizedCrop(16), fastio.RandAugment(2, 9)]
    steps = ImageSteps.named("usersown:train", normalized=True)
    assert steps.python == ()
    assert [type(step).__name__ for step in steps.native] == [
        "RandomResizedCrop",
        "RandAugment",
        "Normalize",
    ]


@pytest.mark.parametrize("given", ["nowhere:train", "usersown:missing", "usersown"])
def test_what_cannot_be_imported_is_named(script: Any, given: str) -> None:
    with pytest.raises(OptionError, match=f"{given} cannot be imported as MODULE:NAME"):
        ImageSteps.named(given)


@pytest.mark.parametrize("given", [None, 7, [], "text"])
def test_what_is_no_transform_is_refused(script: Any, given: Any) -> None:
    script.train = given
    with pytest.raises(OptionError, match="expected a torchvision transform"):
        ImageSteps.named("usersown:train")


# --- The doctor -----------------------------------------------------------------------------------


def test_augmentation_in_python_is_found_with_the_epoch_after_it() -> None:
    (found,) = diagnose(AUGMENTED, Use())
    assert found.culprit == "augment"
    assert "takes 50% of an epoch of a DataLoader: RandAugment, ColorJitter" in found.waits_for
    assert found.gain == pytest.approx(2000 / (4 * 100))
    assert found.evidence[0] == (
        "an epoch takes 25.0 s with 4 workers of a DataLoader, at best; 5.00 s predicted with "
        "fastio's native augmentation"
    )
    assert "augment 5.00 ms (RandAugment 3.00, ColorJitter 2.00)" in found.evidence[1]


def test_steps_that_fastio_does_not_know_are_told() -> None:
    steps = (*STEPS, StepFacts("rotated", "python", 0.001))
    images = replace(AUGMENTED.images or IMAGES, steps=steps)
    (found,) = diagnose(replace(AUGMENTED, images=images), Use())
    assert found.evidence[-1].endswith("rotated")


def test_augmentation_that_hides_behind_the_model_is_no_finding() -> None:
    assert [found.culprit for found in diagnose(AUGMENTED, Use(model_rate=390.0))] == ["compute"]


def test_without_augmentation_the_workers_are_slow_by_decoding() -> None:
    images = replace(AUGMENTED.images or IMAGES, steps=STEPS[:2])
    (found,) = diagnose(replace(AUGMENTED, images=images), Use())
    assert found.culprit == "decode"


def test_the_facts_name_augmentation_as_a_stage() -> None:
    lines = dict(fact_lines(AUGMENTED, Use(pipeline="train:transform")))
    assert "augment 5.00 ms (RandAugment 3.00, ColorJitter 2.00)" in lines["in Python"]
    assert lines["in fastio"] == "20% of the work of its threads is augmentation"


def test_threads_that_mostly_augment_are_waited_for_as_such() -> None:
    images = replace(AUGMENTED.images or IMAGES, augment_share=0.6)
    found = expected(replace(AUGMENTED, images=images), Use())
    assert found is not None
    assert found.waits_for() == "augment"
    assert found.rates()["augment"] == pytest.approx(2000 / 0.6)


@pytest.mark.usefixtures("short_probes")
def test_a_doctor_times_each_step_of_a_folder(script: Any, tmp_path: Path) -> None:
    v = import_torchvision().transforms
    script.train = v.Compose([v.RandomResizedCrop(16), v.ColorJitter(0.4), rotated, v.ToTensor()])
    images = examine(str(numbered_folder(tmp_path)), Use(pipeline="usersown:train")).images
    assert images is not None
    kinds = [step.kind for step in images.steps]
    assert kinds == ["decode", "crop", "augment", "python", "convert"]
    assert all(step.seconds > 0 for step in images.steps)
    assert images.rate
    assert 0 < images.augment_share < 1


def test_a_doctor_refuses_transforms_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be imported"):
        examine(str(numbered_folder(tmp_path)), Use(pipeline="nowhere:train"))


# --- What a bench measured ------------------------------------------------------------------------


def test_augmentation_is_a_part_of_what_the_loader_costs() -> None:
    found = costs(measured([phase("loader_warm", 400, decode=600, augment=200)]))
    assert found.prep_s == pytest.approx(400e-6)
    assert found.augment_s == pytest.approx(100e-6)
    assert found.waits_for() == "decode"
    assert Costs(prep_s=4, augment_s=3, compute_s=1).waits_for() == "augment"


def test_the_waiting_for_a_dataloader_is_divided_as_its_workers_steps() -> None:
    phases = [phase("baseline_together", 5000, compute=1000)]
    (epoch,) = measured(phases, worker_steps=STEPS).all_epochs()
    assert epoch.epoch_s == pytest.approx(5000e-6 * ROWS)
    assert epoch.stages == {
        "decode": pytest.approx(20.0),
        "augment": pytest.approx(20.0),
        "compute": pytest.approx(10.0),
    }


# --- A loader that ran ----------------------------------------------------------------------------


def test_functions_per_sample_that_workers_spend_their_time_in_are_named() -> None:
    stats = Stats(
        transforms="image: 2 steps in native threads, PerSample(rotated) in 4 processes",
        samples=1000, batches=10, decode_s=4.0, sample_s=40.0, wait_s=9.0, between_s=1.0, threads=4,
    )  # fmt: skip
    first, *_ = diagnose_stats(stats, cores=4)
    assert first.culprit == "augment"
    assert "once per sample in Python" in first.waits_for
    assert first.evidence[0].endswith("workers: 40.0 s in per-sample functions")
    assert first.gain == pytest.approx(10 / 1)


def test_native_augmentation_that_takes_most_of_the_threads_is_named() -> None:
    stats = Stats(samples=1000, decode_s=8.0, augment_s=30.0, wait_s=9.0, between_s=1.0, threads=4)
    first, *_ = diagnose_stats(stats, cores=4)
    assert (first.culprit, first.gain) == ("augment", pytest.approx(10 / 2))


def test_facts_with_steps_are_json() -> None:
    told = Facts(images=AUGMENTED.images).to_dict()
    assert told["images"]["steps"][2] == {
        "name": "RandAugment", "kind": "augment", "seconds": np.float64(0.003),
    }  # fmt: skip
