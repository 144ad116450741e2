"""Datasets in the layout of the Hugging Face Hub, there or in a local folder: files of a split.

The rules (configurations in README.md, names of files and folders) are those of the datasets
package, which is asked for them. It lists files, reads README.md, and no data; fastio reads the
files, of a dataset on the Hub in the commit that they were found in.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from typing import Any

from fastio.errors import (
    DatasetNotFound,
    FormatUnsupported,
    OptionError,
    PackageMissing,
    SourceNotFound,
    StoreError,
)
from fastio.packed import MANIFEST_NAME
from fastio.runtime.files import walk
from fastio.shown import without_secrets
from fastio.sources.base import Options
from fastio.sources.listed import METADATA, About, ListedFiles
from fastio.store import absolute_path, is_remote

_SCHEME = "hf://"
_WANTED = "hf://datasets/ORG/NAME or hf://datasets/ORG/NAME@REVISION"
# The table formats by the name of the builder of the datasets package.
_TABLES = {"parquet": "parquet", "arrow": "arrow", "csv": "csv", "json": "jsonl", "text": "text"}
_BUILDERS = (*_TABLES, "webdataset", "imagefolder", "audiofolder")
# Settings of builders that fastio understands, or that change nothing of what is read.
_UNDERSTOOD = frozenset(
    {
        *("name", "version", "data_dir", "data_files", "description", "features"),
        *("sep", "delimiter", "drop_labels", "drop_metadata"),
        *("chunksize", "batch_size", "decode_num_threads", "use_threads", "block_size"),
    }
)
_COMPRESSED = (".zip", ".zst", ".bz2", ".xz", ".lz4", ".7z", ".rar")
_LISTED = 10  # files that an error names
# Files of folders that are a dataset of another layout: packed, or saved by `save_to_disk`.
_OTHERS = (MANIFEST_NAME, "state.json", "dataset_dict.json")


def hub_files(source: Any, options: Options) -> Any:
    """Returns the files of a split of a dataset as the Hub lays it out; other sources as they are.

    Args:
        source: A source; paths are text. A URL of a file or folder in a dataset is returned as it
            is, and so is a local folder if neither a split nor a configuration is given.
        options: The split and configuration, and the token in storage_options.

    Raises:
        OptionError: There are several splits or configurations and none was chosen, or none of the
            given name; or the source is no dataset on the Hub.
        DatasetNotFound: There is no such dataset, or it has no data files.
        FormatUnsupported: fastio does not read its files.
        StoreError: The Hub does not answer, or refuses to.
    """
    wanted = options.split is not None or options.config is not None
    here = source if isinstance(source, str) else ""
    is_whole = here.startswith(_SCHEME) and _is_repository(here)
    if not is_whole:
        if not wanted:
            return source
        _check_folder(here)
    source = here
    builder = _builder(source, options)
    files = {
        str(split): [str(file) for file in listed]
        for split, listed in (builder.config.data_files or {}).items()
    }
    where = _named(source, options)
    if not any(files.values()):
        raise DatasetNotFound(f"{where} has no data files. {_there(source, options)}")
    split = _chosen(source, options.split, files)
    if not files[split]:
        raise DatasetNotFound(f"{where}: split {split!r} has no files. {_there(source, options)}")
    about = _about(source, split, builder)
    names = [file for file in files[split] if not file.lower().endswith(METADATA)]
    return ListedFiles(about, names if about.table is None else files[split])


def _check_folder(path: str) -> None:
    """Raises OptionError if a split of a path cannot be chosen."""
    others = (name for name in _OTHERS if os.path.exists(os.path.join(path, name)))
    other = None if is_remote(path) or not os.path.isdir(path) else next(others, "")
    if other != "":
        why = f"; {path} has a {other}: it is packed, or saved by save_to_disk" if other else ""
        raise OptionError(
            f"split and config are only for datasets on the Hub ({_WANTED}), and for local folders "
            f"with the same layout{why}; leave them out"
        )


def _is_repository(url: str) -> bool:
    """Returns whether a URL names a dataset, and no file or folder in it."""
    kind, *parts = url.removeprefix(_SCHEME).strip("/").split("/")
    if kind != "datasets" or len(parts) < 2:
        raise OptionError(f"expected {_WANTED}, got {without_secrets(url)}")
    return len(parts) == 2 or (len(parts) == 4 and parts[1].endswith("@refs"))


def _chosen(source: str, split: str | None, files: dict[str, list[str]]) -> str:
    """Returns the name of the split that is read."""
    if split is None and len(files) > 1:
        first = next(iter(files))
        raise OptionError(
            f"{source} has the splits {', '.join(files)}: choose one, for example "
            f"fastio.open(..., split={first!r}), or --split {first}"
        )
    if split is not None and split not in files:
        raise OptionError(f"{source} has no split {split!r}. Its splits are {', '.join(files)}")
    return next(iter(files)) if split is None else split


def _about(source: str, split: str, builder: Any) -> About:
    """Returns what the datasets package knows of the files of a split.

    A dataset has one builder. The files of a configuration may have another format than those of
    the first one, for which the builder was chosen; then the names of its files decide.

    Raises:
        FormatUnsupported: fastio does not read them, or not as README.md says.
    """
    # An optional package, which is loaded already.
    from datasets.load import infer_module_for_data_files_list  # type: ignore[import-untyped]

    files = [str(file) for file in builder.config.data_files[split]]
    name = f"{source}, split {split!r}"
    packed = [file for file in files if file.lower().endswith(_COMPRESSED)]
    if packed:
        raise FormatUnsupported(
            f"{name} has compressed files ({_some(packed)}), which fastio does not read from where "
            "they are: load them with datasets.load_dataset, and pass the result to fastio"
        )
    module, settings = infer_module_for_data_files_list(builder.config.data_files[split])
    module = module or builder.name
    if module not in _BUILDERS:
        raise FormatUnsupported(
            f"{name} has files that the datasets package reads as {module!r}, which fastio does "
            f"not read ({_some(files)}): load them with datasets.load_dataset, and pass the result "
            "to fastio"
        )
    if module == builder.name:
        settings = {**settings, **_settings(name, builder.config)}
    features, labels = builder.info.features, settings.get("drop_labels")
    metadata = [file for file in files if file.lower().endswith(METADATA)]
    return About(
        source,
        _TABLES.get(module),
        settings.get("sep", ","),
        {} if features is None else features.to_dict(),
        None if labels is None else not labels,
        () if settings.get("drop_metadata") else tuple(metadata),
    )


def _settings(name: str, config: Any) -> dict[str, Any]:
    """Returns the settings of a builder; FormatUnsupported if fastio does not apply one."""
    default = type(config)()
    for setting, value in vars(config).items():
        if setting not in _UNDERSTOOD and value != getattr(default, setting, None):
            raise FormatUnsupported(
                f"{name}: its README.md sets {setting}={value!r}, which fastio does not apply: "
                "load the dataset with datasets.load_dataset, and pass the result to fastio"
            )
    return {each: value for each, value in vars(config).items() if value is not None}


def _builder(source: str, options: Options) -> Any:
    """Returns the builder that the datasets package makes for a configuration of a dataset."""
    remote = source.startswith(_SCHEME)
    try:
        # Optional packages, whose import takes a second.
        import datasets  # type: ignore[import-untyped]
        from datasets.data_files import EmptyDatasetError  # type: ignore[import-untyped]
        from huggingface_hub import errors
    except ImportError as error:
        raise PackageMissing("datasets", f"read {source}", "fastio[hub]", error) from None
    given = options.storage_options or {}
    if remote and "endpoint" in given:
        raise OptionError(
            "the endpoint of the Hub cannot be an option: set the environment variable HF_ENDPOINT"
        )
    name, revision = _repository(source) if remote else (absolute_path(source), None)
    where = _named(source, options)
    # In the user's cache, a builder finds the features that load_dataset gave the dataset, of which
    # images that the files do not declare are none.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        try:
            return datasets.load_dataset_builder(
                name, options.config, revision=revision, token=given.get("token"), cache_dir=cache
            )
        except (datasets.exceptions.DatasetNotFoundError, errors.RepositoryNotFoundError) as error:
            raise DatasetNotFound(
                f"{source}: {_line(error)} A private dataset needs a token: set HF_TOKEN, or run "
                "`hf auth login`"
            ) from error
        except (datasets.exceptions.DataFilesNotFoundError, EmptyDatasetError) as error:
            there = _there(source, options)
            raise DatasetNotFound(f"{where} has no data files. {there}") from error
        except ValueError as error:
            raise _of_value_error(error, source, options) from error
        except (ConnectionError, OSError, errors.HfHubHTTPError) as error:
            if not remote and not isinstance(error, ConnectionError | errors.HfHubHTTPError):
                raise SourceNotFound(f"{source} cannot be read: {_line(error)}") from error
            raise StoreError(
                f"{source}: a request to the Hub failed: {_line(error).rstrip('.')}. Check the "
                "network, and HF_ENDPOINT if it is set; then open the dataset again"
            ) from error


def _of_value_error(
    error: ValueError, source: str, options: Options
) -> OptionError | DatasetNotFound:
    """Returns the error that stands for a ValueError of the datasets package."""
    line, where = _line(error), _named(source, options)
    lacks = re.search(r"'([^']+)': \(None", line)
    if lacks:  # "Couldn't infer the same data file format for all splits. Got {...}"
        return DatasetNotFound(
            f"{where}: split {lacks[1]!r} has no files, or none of a format that the datasets "
            f"package knows: the configuration in README.md names files that are not there. "
            f"{_there(source, options)}"
        )
    if "config" in line.lower() and "data file" not in line.lower():
        return OptionError(
            f"{source}: {line} Choose one with fastio.open(..., config=...) or --config"
        )
    return DatasetNotFound(f"{where}: {line} {_there(source, options)}")


def _repository(url: str) -> tuple[str, str | None]:
    """Returns ORG/NAME and the revision of a dataset on the Hub."""
    name, _, revision = url.removeprefix(f"{_SCHEME}datasets/").strip("/").partition("@")
    return name, revision or None


def _there(source: str, options: Options) -> str:
    """Returns a sentence that names the files of a dataset."""
    found: list[str] = []
    try:
        if source.startswith(_SCHEME):
            from huggingface_hub import HfApi

            name, revision = _repository(source)
            api = HfApi(token=(options.storage_options or {}).get("token"))
            found = api.list_repo_files(name, revision=revision, repo_type="dataset")
        else:
            for folder, _, names in walk(source):
                found += [os.path.relpath(os.path.join(folder, each), source) for each in names]
    except Exception as error:  # another error is on its way, which matters more
        return f"Its files cannot be listed: {_line(error)}"
    return f"It has the files {_some(sorted(found))}" if found else "It has no files"


def _some(files: Sequence[str]) -> str:
    names = [
        file.partition("@")[2].partition("/")[2] if file.startswith(_SCHEME) else file
        for file in files[:_LISTED]
    ]
    more = f" and {len(files) - _LISTED:,} more" if len(files) > _LISTED else ""
    return ", ".join(names) + more


def _named(source: str, options: Options) -> str:
    """Returns how messages name the dataset, with the configuration if one was chosen."""
    return source if options.config is None else f"{source}, configuration {options.config!r}"


def _line(error: Exception) -> str:
    return " ".join(without_secrets(str(error)).split())
