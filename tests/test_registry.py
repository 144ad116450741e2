"""What a path, a URL or an object is: the same for everything that takes data, and its options."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
import torch

import fastio
from fastio import DatasetNotFound, Loader, OptionError, SourceNotFound
from fastio.sources.registry import KINDS, describe, find
from fastio.store import index_pages
from tests.saved import save_to, table_dataset
from tests.servers import http_folder
from tests.support import numbered_folder
from tests.tars import write_tars
from tests.test_cli import run

# A value that is possible for each option, and the kinds that take it; none: all do.
OPTIONS: dict[str, tuple[Any, set[str]]] = {
    "storage_options": ({"timeout": 5}, set()),
    "cache": ("kept", {"sounds", "packed", "tars", "folder", "hugging_face"}),
    "fields": (["jpg"], {"tars"}),
    "incomplete": ("skip", {"tars"}),
    "columns": (["number"], {"tables", "hugging_face"}),
    "groups": ({"numbers": ["number"]}, {"tables", "hugging_face"}),
    "dtypes": ({"number": "float32"}, {"tables", "hugging_face", "tokens"}),
    "nulls": ({"number": 0}, {"tables", "hugging_face"}),
    "filters": ([("number", ">", 1)], {"tables", "hugging_face"}),
    "memory": ("64MiB", {"tables", "hugging_face"}),
    "resident": (True, {"packed"}),
    "roots": (["."], {"hugging_face"}),
    "max_pixels": (10**6, {"packed", "tars", "folder", "tables", "hugging_face"}),
    "max_unzipped_bytes": (10**6, {"sounds", "packed", "tars", "tables", "hugging_face"}),
    "images": ([], {"arrays", "tables"}),
    "version": (1, {"packed"}),
    "split": ("train", set()),
    "config": ("default", set()),
    "separator": (0, {"tokens"}),
    "partitions": (2, {"sounds", "packed", "tars", "folder"}),
}
NAMES = ["packed", "folder", "sounds", "tars", "tables", "hugging_face"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of each kind, named by the kind."""
    root = tmp_path_factory.mktemp("registry")
    numbered_folder(root / "folder", (3, 2))
    fastio.pack(root / "folder", root / "packed")
    for name in ("a/0.wav", "a/1.wav", "b/0.wav"):
        path = root / "sounds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"RIFF")
    write_tars(root / "tars", (3, 2))
    (root / "tables").mkdir()
    for part in range(2):
        rows = pa.table({"number": range(8 * part, 8 * part + 8), "x": [0.5] * 8})
        pa_parquet.write_table(rows, root / "tables" / f"{part}.parquet", row_group_size=3)
    save_to(table_dataset(9), root / "hugging_face")
    return root


@pytest.fixture(scope="module")
def web(data: Path) -> Iterator[str]:
    """The URL of `data`, on a server that cannot list."""
    with http_folder(data, python=True) as url:
        yield url


def held(root: Path) -> list[str]:
    """The files of a folder that this process has open."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in links if name.startswith(str(root)))


class AsPath:
    """What has `__fspath__`, and is no Path."""

    def __init__(self, path: str | bytes) -> None:
        self._path = path

    def __fspath__(self) -> str | bytes:
        return self._path


# --- One kind for all -----------------------------------------------------------------------------


def test_every_kind_has_a_key_of_its_own() -> None:
    others = ["arrays", "tokens"]  # not in files, and in single files: see test_token_files.py
    assert sorted(kind.key for kind in KINDS) == sorted([*NAMES, *others])


@pytest.mark.parametrize("name", NAMES)
def test_a_source_is_of_one_kind_for_all_that_read_it(data: Path, name: str) -> None:
    source = data / name
    found = find(source)
    assert found is not None
    assert found.kind.key == name
    assert describe(source)["dataset"] == name
    with fastio.open(source) as dataset, Loader(source) as loader:
        assert isinstance(dataset, found.kind.classes)
        assert type(loader.dataset) is type(dataset)
        assert len(loader.dataset) == len(dataset) == describe(source)["rows"]
        assert loader.path == "native"
    assert run("info", source)[0] == 0
    assert run("verify", source, "--quiet")[0] == 0


@pytest.mark.parametrize("name", NAMES)
def test_only_packed_datasets_are_exported_and_only_they_are_not_packed(
    data: Path, name: str, tmp_path: Path
) -> None:
    if name == "packed":
        fastio.export(data / name, tmp_path / "files")
        with pytest.raises(fastio.PackError, match="is already packed"):
            fastio.pack(data / name, tmp_path / "packed")
        return
    with pytest.raises(fastio.PackError, match="is not a packed dataset") as error:
        fastio.export(data / name, tmp_path / "files")
    assert not held(data), error
    fastio.pack(data / name, tmp_path / "packed")
    assert describe(tmp_path / "packed")["rows"] == describe(data / name)["rows"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["text", "fspath", "fspath of bytes"])
def test_any_form_of_a_path_is_the_same_data(data: Path, name: str, form: str) -> None:
    text = str(data / name)
    source = {"text": text, "fspath": AsPath(text), "fspath of bytes": AsPath(os.fsencode(text))}
    with fastio.open(source[form]) as dataset, Loader(source[form]) as loader:
        assert isinstance(dataset, find(text).kind.classes)  # type: ignore[union-attr]
        assert len(loader.dataset) == len(dataset)


def test_a_path_of_bytes_is_told_how_to_be_text(data: Path) -> None:
    with pytest.raises(DatasetNotFound, match=r"give os\.fsdecode\(path\)"):
        fastio.open(os.fsencode(data / "packed"))


@pytest.mark.parametrize("name", ["tars", "tables"])
def test_lists_and_patterns_are_what_their_folder_is(data: Path, name: str) -> None:
    paths = sorted((data / name).iterdir())
    pattern = {"tars": "train-{000..001}.tar", "tables": "[01].parquet"}[name]
    for source in (paths, tuple(map(str, paths)), str(data / name / pattern)):
        with fastio.open(source) as dataset, Loader(source) as loader:
            assert find(source).kind.key == name  # type: ignore[union-attr]
            assert len(loader.dataset) == len(dataset) == describe(data / name)["rows"]


@pytest.mark.parametrize(
    "name", ["packed", "tars/train-{000..001}.tar", "tars/train-000.tar", "tables/0.parquet"]
)
def test_a_url_is_of_the_kind_of_its_folder(data: Path, web: str, name: str) -> None:
    url = f"{web}/{name}"
    with fastio.open(url) as dataset, Loader(url) as loader:
        assert find(url).kind.key == name.partition("/")[0]  # type: ignore[union-attr]
        assert len(loader.dataset) == len(dataset) == describe(url)["rows"]


def test_a_list_of_urls_of_tables_is_tables(web: str) -> None:
    urls = [f"{web}/tables/{part}.parquet" for part in range(2)]
    with fastio.open(urls) as dataset, Loader(urls, 4) as loader:
        again = pickle.loads(pickle.dumps(dataset))
        assert again[15]["number"] == dataset[15]["number"] == 15
        assert sum(len(batch["number"]) for batch in loader) == 16
        again.close()


def test_a_list_of_urls_of_tars_is_tars(data: Path, web: str) -> None:
    names = sorted(path.name for path in (data / "tars").iterdir())
    with fastio.open([f"{web}/tars/{name}" for name in names]) as dataset:
        again = pickle.loads(pickle.dumps(dataset))
        assert len(again) == len(dataset) == describe(data / "tars")["rows"]
        again.close()
    with pytest.raises(OptionError, match="all local or all by URL"):
        fastio.open([f"{web}/tars/{names[0]}", str(data / "tars" / names[0])])


def test_folders_behind_a_server_that_cannot_list_are_told_apart_from_nothing(
    web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_pages, "_TITLE", re.compile("no title"))
    for name in ("tars", "tables", "nothing"):
        with pytest.raises(DatasetNotFound, match="web server lists no folder of images"):
            fastio.open(f"{web}/{name}")


# --- Several kinds in one place -------------------------------------------------------------------


def test_a_manifest_goes_before_tars_and_tables_and_images(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "packed", tmp_path, dirs_exist_ok=True)
    shutil.copytree(data / "tars", tmp_path, dirs_exist_ok=True)
    shutil.copytree(data / "folder", tmp_path, dirs_exist_ok=True)
    shutil.copytree(data / "tables", tmp_path, dirs_exist_ok=True)
    assert find(tmp_path).kind.key == "packed"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["folder", "sounds"])
def test_a_table_beside_files_of_samples_does_not_make_them_tables(
    data: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(data / name, tmp_path, dirs_exist_ok=True)
    (tmp_path / "notes.csv").write_text("file_name,n\na,1\n")
    assert find(tmp_path).kind.key == name  # type: ignore[union-attr]
    assert describe(tmp_path)["rows"] == describe(data / name)["rows"]


def test_a_half_written_folder_is_told_to_be_finished(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "folder", tmp_path, dirs_exist_ok=True)
    (tmp_path / "pack.journal").write_bytes(b"")
    for read in (fastio.open, Loader, describe):
        with pytest.raises(DatasetNotFound, match="--resume"):
            read(tmp_path)


def test_an_empty_folder_is_no_data_for_anything(tmp_path: Path) -> None:
    for read in (fastio.open, Loader, describe):
        with pytest.raises(DatasetNotFound, match="has no tars, table files, images or sound"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["a.tar", "a.parquet", "a.csv"])
def test_a_link_to_nothing_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "gone")
    for source in (tmp_path / name, tmp_path, [tmp_path / name]):
        with pytest.raises(fastio.FastioError, match=str(tmp_path)):
            fastio.open(source)


def test_a_list_of_several_kinds_is_refused(data: Path) -> None:
    paths = [data / "tars" / "train-000.tar", data / "tables" / "0.parquet"]
    for read in (fastio.open, Loader):
        with pytest.raises(DatasetNotFound, match="the list is neither"):
            read(paths)
        with pytest.raises(DatasetNotFound, match="the list is neither"):
            read(paths[::-1])


@pytest.mark.usefixtures("warned_anew")
def test_a_list_of_strings_that_are_no_files_is_samples_as_in_dataloader() -> None:
    with pytest.warns(fastio.PerformanceWarning):
        loader = Loader(["some", "words"], 2)
    assert list(loader) == list(torch.utils.data.DataLoader(["some", "words"], 2))  # type: ignore[arg-type]


def test_an_empty_list_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound, match="the list is neither"):
        fastio.open([])


# --- Options --------------------------------------------------------------------------------------


def test_every_option_is_in_this_table_and_some_kind_takes_it() -> None:
    assert list(signature(fastio.open).parameters) == ["source", *OPTIONS]
    for option, (_, takers) in OPTIONS.items():
        found = {kind.key for kind in KINDS if option in kind.options}
        assert found == takers, option


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_taken_or_refused_by_the_names_of_the_kinds_that_take_it(
    data: Path, name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the cache lies
    value, takers = OPTIONS[option]
    of_urls = [("cache", "packed"), ("cache", "sounds"), *product(["partitions"], takers)]
    if option == "storage_options" or (option, name) in of_urls:
        with pytest.raises(OptionError, match=f"{option} is only for URLs.*, and {data / name} is"):
            fastio.open(data / name, **{option: value})
    elif option in ("split", "config") and name not in ("packed", "hugging_face"):
        pytest.importorskip("datasets")  # folders with the layout of the Hub, with one split
        with fastio.open(data / name, **{option: value}) as one, fastio.open(data / name) as every:
            assert len(one) == len(every)
    elif option in ("split", "config"):
        with pytest.raises(OptionError, match="only for datasets on the Hub"):
            fastio.open(data / name, **{option: value})
    elif not takers or name in takers:
        fastio.open(data / name, **{option: value}).close()
    else:
        with pytest.raises(OptionError, match=f"^{option} is an option for ") as error:
            fastio.open(data / name, **{option: value})
        told, _, rest = str(error.value).partition(", not for ")
        assert all((kind.name in told) == (kind.key in takers) for kind in KINDS)
        assert rest.startswith(next(kind.name for kind in KINDS if kind.key == name))
        assert isinstance(error.value, ValueError)


def test_an_open_dataset_takes_no_options(data: Path) -> None:
    with fastio.open(data / "tables") as dataset:
        assert fastio.open(dataset) is dataset
        with pytest.raises(OptionError, match="is already open: pass columns"):
            fastio.open(dataset, columns=["x"])


@pytest.mark.parametrize("option", sorted(OPTIONS.keys() - {"cache", "fields"}))
def test_an_option_of_data_given_to_a_loader_is_told_the_line_to_write(option: str) -> None:
    line = rf"fastio\.Loader\(fastio\.open\(source, {option}=\.\.\.\)\)"
    with pytest.raises(TypeError, match=line):
        Loader("anything", **{option: 1})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"shuffle": True},
            r"goes there: fastio\.Loader\(fastio\.open\(source\), shuffle=\.\.\.\)",
        ),
        ({"column": ["a"]}, r"open\(\) has no argument column: did you mean columns\?"),
    ],
)
def test_an_argument_that_open_does_not_have_is_told_where_it_belongs(
    data: Path, option: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        fastio.open(data / "packed", **option)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("threads", "auto", "fastio.Loader(source, num_workers='auto')"),
        ("mesh", None, "fastio.Loader(source, distributed=mesh)"),
        ("dims", ("dp", "fsdp"), "fastio.Loader(source, distributed=mesh['dp', 'fsdp'])"),
    ],
)
def test_what_another_argument_of_a_loader_does_is_told_the_line_to_write(
    name: str, value: Any, line: str
) -> None:
    with pytest.raises(TypeError, match=f"^{name} is no argument of a Loader: .*{re.escape(line)}"):
        Loader("anything", **{name: value})


def test_a_loader_has_at_most_30_arguments() -> None:
    assert len(signature(Loader).parameters) <= 30


def test_source_is_no_argument_of_a_loader() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'source'"):
        Loader(source="anything")  # type: ignore[call-arg]


def test_a_loader_of_the_users_has_the_arguments_that_it_wants(data: Path) -> None:
    class Columns(Loader[Any]):
        def __init__(self, path: Path, columns: list[str]) -> None:
            super().__init__(fastio.open(path, columns=columns), 4)

    with Columns(data / "tables", columns=["x"]) as loader:
        assert list(next(iter(loader))) == ["x"]


def test_images_that_a_pattern_or_a_list_names_are_to_be_given_otherwise(
    data: Path, tmp_path: Path
) -> None:
    files = sorted(map(str, (data / "folder").rglob("*.jpg")))
    assert files
    for read in (fastio.open, Loader, lambda pattern: fastio.pack(pattern, tmp_path / "out")):
        with pytest.raises(
            fastio.SourceNotFound, match=r"matches no tars or tables; .* by their f"
        ):
            read(f"{data}/folder/*/*.jpg")
    with pytest.raises(fastio.DatasetNotFound, match=r"FolderDataset\.from_samples"):
        fastio.open(files)
    with pytest.raises(fastio.DatasetNotFound, match="images and sound files by their folder"):
        fastio.open(files[0])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("run[1]/data", "does not exist"),
        ("{name}/photos", "does not exist"),
        ("photos/*.png", "matches no file"),
        ("photos/**/*.jpg", "matches no tars or tables"),
        ("{photos,none}/?.jpg", "matches no tars or tables"),
    ],
)
def test_names_and_patterns_of_nothing_say_so(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "photos" / "cat" / "tabby").mkdir(parents=True)
    for folder in ("photos", "photos/cat/tabby"):
        (tmp_path / folder / "1.jpg").touch()
    with pytest.raises(fastio.SourceNotFound) as caught:
        fastio.open(tmp_path / name)
    assert str(caught.value).removeprefix(str(tmp_path / name)).startswith(f" {why}")


# --- Who closes what ------------------------------------------------------------------------------

WRONG: dict[str, dict[str, Any]] = {
    "transforms": {"transforms": {"nothing": 3}},
    "a field": {"fields": ["nothing"]},
    "a start method": {"num_workers": 2, "multiprocessing_context": "nothing"},
    "a seed": {"seed": "nothing"},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_loader_that_cannot_be_made_leaves_nothing_open(
    data: Path, name: str, wrong: str
) -> None:
    with pytest.raises((TypeError, ValueError, fastio.FastioError)) as error:
        Loader(data / name, 2, **WRONG[wrong])
    assert not held(data), error  # whose traceback holds the loader


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_loader_has_closed_what_it_opened(data: Path, name: str) -> None:
    loader = Loader(data / name, 2, collate_fn=list)
    assert len(list(loader)) == len(loader)
    assert loader.dataset[0]
    loader.close()
    assert not held(data)


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_loader_leaves_open_what_the_user_opened(data: Path, name: str) -> None:
    dataset = fastio.open(data / name)
    first = repr(dataset[0])
    with Loader(dataset, 2, collate_fn=list) as loader:
        list(loader)
    assert loader.dataset is dataset
    assert repr(dataset[0]) == first
    dataset.close()
    assert not held(data)


# --- Tables are read when they are asked ----------------------------------------------------------


def test_two_threads_that_ask_lazy_tables_at_once_open_them_once(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Loader(data / "tables") as loader, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: id(loader.dataset.schema), range(64)))
    assert len(set(found)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_goes_to_another_process_with_its_limits(data: Path, name: str) -> None:
    limit = "max_unzipped_bytes" if name == "sounds" else "max_pixels"
    given: dict[str, Any] = {limit: 12345}
    dataset = fastio.open(data / name, **given)
    with dataset, pickle.loads(pickle.dumps(dataset)) as again:
        assert (len(again), getattr(again, limit)) == (len(dataset), 12345)
        assert repr(again[0]) == repr(dataset[0])


def test_tables_with_options_are_the_same_after_pickling(data: Path) -> None:
    given: dict[str, Any] = {"columns": ["number"], "filters": [("number", ">", 5)]}
    dataset = fastio.open(data / "tables", memory="1MiB", **given)
    with dataset, pickle.loads(pickle.dumps(dataset)) as again:
        assert [row["number"] for row in again] == list(range(6, 16))
        assert again.memory == "1MiB"


# --- Loaders made of loaders ----------------------------------------------------------------------


def made_again(loader: Loader[Any]) -> Loader[Any]:
    """Another loader of a loader's attributes, as Lightning makes one."""
    own = {"self", "shuffle", "sampler", "batch_sampler"}  # of which Lightning makes others
    names = signature(Loader.__init__).parameters.keys() - own
    return Loader(**{name: getattr(loader, name) for name in names})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_workers", [1, "auto"])
def test_a_loader_made_of_a_loaders_attributes_gives_the_same(
    data: Path, name: str, num_workers: Any
) -> None:
    with Loader(data / name, 2, num_workers=num_workers, collate_fn=list) as loader:
        with made_again(loader) as again:
            assert again.dataset is loader.dataset
            assert repr(list(again)) == repr(list(loader))
        assert len(list(loader)) == len(loader)


def test_fields_of_tars_are_named_as_files_and_kept_by_another_loader(data: Path) -> None:
    with Loader(data / "tars", 1, fields=["seg.png"]) as loader, made_again(loader) as again:
        assert [list(batch) for batch in again] == [["seg_png"]] * 5


# --- Opened datasets among others -----------------------------------------------------------------


def test_subsets_and_chains_of_opened_tables_have_their_rows(data: Path) -> None:
    from torch.utils.data import ConcatDataset, Subset

    with fastio.open(data / "tables") as dataset:
        with Loader(Subset(dataset, [3, 9]), 2) as loader:
            assert [batch["number"].tolist() for batch in loader] == [[3, 9]]
        with Loader(ConcatDataset([dataset, dataset]), 32) as loader:
            assert [batch["number"].tolist() for batch in loader] == [[*range(16), *range(16)]]
        assert np.array_equal(dataset.gather("number", np.arange(2)), [0, 1])


def test_a_mix_of_paths_closes_them_and_gives_the_cache_to_urls_alone(
    data: Path, web: str, tmp_path: Path
) -> None:
    mix = fastio.mix({str(data / "packed"): 0.5, f"{web}/packed": 0.5})
    with Loader(mix, 2, cache=tmp_path / "kept", seed=0) as loader:
        assert sum(len(labels) for _, labels in loader) >= 5
    assert (tmp_path / "kept").is_dir()
    assert not held(data)


def test_a_mix_that_cannot_be_made_leaves_nothing_open(data: Path) -> None:
    mix = fastio.mix({str(data / "packed"): 0.5, str(data / "gone"): 0.5})
    with pytest.raises(SourceNotFound, match="gone") as error:
        Loader(mix, 2)
    assert not held(data), error


def test_an_arrow_table_in_memory_is_to_be_packed() -> None:
    """A Loader would take its columns for samples, so the message must not name the Loader."""
    with pytest.raises(fastio.DatasetNotFound, match=r"Table in memory: pack it with fastio\.pack"):
        fastio.open(pa.table({"x": [1, 2]}))
