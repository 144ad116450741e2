"""The ladder: which rungs a machine shows, and that each trains as its recipe says."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_images
import pytest
import torch

from fastio import BenchError, OptionError, pack
from fastio.diagnose.bench import Options
from fastio.diagnose.bench import ladder as climb
from fastio.diagnose.bench import rung as trained
from fastio.diagnose.bench.ladder import Recipe, recipes
from fastio.diagnose.bench.training import ImageTrial
from fastio.diagnose.measured import Rung
from fastio.diagnose.report import ladder_report, print_report, write_page

COUNT, CLASSES, SIZE = 24, 3, 32
module = sys.modules["fastio.diagnose.bench.ladder"]  # whose name in the package is the function's


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ladder") / "photos"
    make_images.make_images(path, COUNT, CLASSES, 0, workers=1)
    return path


@pytest.fixture(scope="module")
def packed(folder: Path) -> dict[str, str]:
    found = {}
    for codec in ("jpeg", "blocks"):
        found[codec] = str(folder.parent / codec)
        pack(folder, found[codec], codec=codec)
    return found


def options(folder: Path) -> Options:
    return Options(data=str(folder), model="convnet", size=SIZE, batch_size=8, epochs=2)


def rungs_of(device: str, cores: int, folder: Path = Path("photos")) -> list[Recipe]:
    packed = {"jpeg": "in-jpeg", "blocks": "in-blocks"}
    return recipes(options(folder), packed, torch.device(device), cores)


def test_every_rung_has_what_those_before_it_have() -> None:
    found = {recipe.name: recipe for recipe in rungs_of("cpu", 4)}
    assert list(found)[:2] == ["DataLoader, 0 workers", "workers = 4"]
    assert len(found) == 12
    blocks = found["packed as blocks"]
    assert (blocks.training.data, blocks.training.threads) == ("in-blocks", 4)
    assert not blocks.torch_loader
    assert found["packed, JPEG kept"].training.data == "in-jpeg"
    assert found["fastio, the same folder"].training.data == "photos"
    last = found["DDP, 2 processes"]
    assert (last.training.data, last.processes) == ("in-blocks", 2)
    assert last.training.channels_last
    full = found["full recipe: augmentation"]
    names = [type(step).__name__ for step in full.transforms]
    assert names[2:] == ["TrivialAugmentWide", "Normalize", "RandomErasing"]
    assert len(last.transforms) == 3


def test_what_a_machine_cannot_show_is_in_no_later_rung() -> None:
    found = {recipe.name: recipe for recipe in rungs_of("cpu", 1)}
    for name in ("pin_memory", "device prefetch"):
        assert "GPU" in found[name].why_not
    assert found["DDP, 2 processes"].why_not == "there is one core"
    assert not any(recipe.prefetch for recipe in found.values() if not recipe.why_not)


def test_two_processes_share_a_batch_evenly() -> None:
    odd = replace(options(Path("photos")), batch_size=7)
    found = recipes(odd, {"jpeg": "a", "blocks": "b"}, torch.device("cpu"), 2)
    assert "batches of 7" in found[-2].why_not


def test_a_recipe_comes_out_of_its_file_as_it_was(tmp_path: Path) -> None:
    for recipe in rungs_of("cpu", 2):
        recipe.write(tmp_path / "recipe.json")
        assert Recipe.read(str(tmp_path / "recipe.json")) == recipe


@pytest.mark.parametrize("name", ["DataLoader, 0 workers", "full recipe: augmentation"])
def test_a_rung_trains(
    name: str, folder: Path, packed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[int] = []  # of each step that trains
    step = ImageTrial.step

    def counted(self: ImageTrial, model: torch.nn.Module, batch: Any, valid: int) -> Any:
        images.extend([valid] * model.training)
        return step(self, model, batch, valid)

    monkeypatch.setattr(ImageTrial, "step", counted)
    found = recipes(options(folder), packed, torch.device("cpu"), 1)
    recipe = next(recipe for recipe in found if recipe.name == name)
    training = replace(recipe.training, channels_last=True, compile=False)
    result = trained.train(replace(recipe, training=training))
    assert sum(images) == 3 * 8 + 2 * COUNT  # three steps that warm up, and two epochs
    assert result.name == name
    assert result.epoch_s is not None
    assert result.epoch_s > 0
    assert result.accuracy is not None
    right = result.accuracy * COUNT  # every image was looked at once
    assert 0 <= right <= COUNT
    assert right == pytest.approx(round(right))


@pytest.mark.long
def test_rungs_are_trained_in_processes_of_their_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real thing for one rung; that others are told of is what the machine lacks."""

    def few(*arguments: object) -> list[Recipe]:
        found = recipes(*arguments)  # type: ignore[arg-type]
        return [found[0], replace(found[2], why_not="there is no GPU")]

    monkeypatch.setattr(module, "recipes", few)
    said: list[str] = []
    found = climb(replace(options(folder), work=str(tmp_path), epochs=1), said.append)
    assert said == ["packing", "rung 1 of 2: DataLoader, 0 workers"]
    assert found[0].epoch_s is not None
    assert found[1] == Rung("pin_memory", why_not="there is no GPU")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ladder-blocks", "ladder-jpeg"]


def test_a_rung_that_fails_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = module._run

    def failing(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
        """A process that ends as one does whose model is not there, without importing torch."""
        found: tuple[int, str] = run([command[0], "-c", "import no_such_module"], environment)
        return found

    monkeypatch.setattr(module, "_run", failing)
    with pytest.raises(BenchError, match=r"DataLoader, 0 workers(.|\n)*no_such_module"):
        module._measured(rungs_of("cpu", 1, folder)[0])


def test_an_interrupted_rung_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has begun, and would go on for a minute."""
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    code = (
        "import pathlib, signal, sys, time\n"
        f"def end(*_): pathlib.Path({str(ended)!r}).touch(); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        "time.sleep(60)\n"
    )

    def interrupted(self: Any) -> None:
        while not begun.exists():
            assert self.poll() is None
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.communicate", interrupted)
    monkeypatch.setattr(module, "_END_S", 60.0)
    with pytest.raises(KeyboardInterrupt):
        module._run([sys.executable, "-c", code], {})
    assert ended.exists()


def test_a_model_that_is_not_there_is_known_before_anything_is_packed(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"no model 'abacus' for images\. Known models: alexnet"):
        climb(replace(options(folder), model="abacus", work=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_less_than_a_batch_is_no_ladder(folder: Path) -> None:
    with pytest.raises(BenchError, match=f"has only {COUNT} images .* at most {COUNT}"):
        climb(replace(options(folder), batch_size=32))


def test_images_to_evaluate_on_have_the_same_classes(folder: Path, tmp_path: Path) -> None:
    val = tmp_path / "val"
    make_images.make_images(val, 4, CLASSES - 1, 0, workers=1)
    with pytest.raises(BenchError, match="val has 2 classes"):
        climb(replace(options(folder), val=str(val)))


def test_what_is_packed_must_not_become_a_class(folder: Path) -> None:
    with pytest.raises(OptionError, match="would become classes"):
        climb(replace(options(folder), work=str(folder / "work")))
    assert not (folder / "work").exists()


def test_the_data_must_be_a_folder_of_images(packed: dict[str, str]) -> None:
    with pytest.raises(BenchError, match="image folder"):
        climb(options(Path(packed["jpeg"])))
    with pytest.raises(OptionError, match="model"):
        recipes(Options(data="photos"), packed, torch.device("cpu"), 2)


def test_a_ladder_has_a_table_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rungs = [
        Rung("DataLoader", 20.0, 0.5),
        Rung("gpu", why_not="none"),
        Rung("x", 4.0),
    ]
    facts = {"data": "<photos>", "date": "2026-11-22T07:52:26+00:00"}
    report = ladder_report(rungs, facts)
    print_report(report)
    printed = capsys.readouterr().out
    assert "5.0" in printed
    assert "none" in printed
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;photos&gt;" in page
    assert "<photos>" not in page
    assert "2026-11-22 07:52 UTC" in page
    assert "DataLoader" in page
