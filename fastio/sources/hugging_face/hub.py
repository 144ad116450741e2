"""Datasets on the Hugging Face Hub: the files that hf://datasets/ORG/NAME, a split, stands for.

The rules by which the Hub lays data out (configurations in README.md, names of files and folders)
are those of the datasets package, which is asked for them. It reads lists of files and README.md,
and no data; fastio reads the files, of the commit that they were found in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastio.errors import DatasetNotFound, OptionError, PackageMissing, SchemaError, StoreError
from fastio.shown import without_secrets
from fastio.sources.base import Options

_SCHEME = "hf://"
_WANTED = "hf://datasets/ORG/NAME or hf://datasets/ORG/NAME@REVISION"
# Files that describe images or sound, which the datasets package joins with them.
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


class HubFiles(list[str]):
    """URLs of the files of a split, all in one commit of a dataset on the Hub.

    Args:
        url: URL of the dataset, which stands for the list in messages.
        files: URLs of the files.
    """

    def __init__(self, url: str, files: Iterable[str]) -> None:
        super().__init__(files)
        self._url = url

    def __str__(self) -> str:
        return self._url


def hub_files(source: Any, options: Options) -> Any:
    """Returns the files of a dataset on the Hub; other sources as they are.

    Args:
        source: A source. A URL of a file or folder in a dataset is returned as it is.
        options: The split and configuration, and the token in storage_options.

    Raises:
        OptionError: There are several splits or configurations and none was chosen, or none of the
            given name; or the source is no dataset on the Hub.
        DatasetNotFound: There is no such dataset, or it has no data files.
        StoreError: The Hub does not answer, or refuses to.
    """
    is_whole = isinstance(source, str) and source.startswith(_SCHEME) and _is_repository(source)
    if not is_whole:
        if options.split is not None or options.config is not None:
            raise OptionError(f"split and config are only for datasets on the Hub: {_WANTED}")
        return source
    repository, _, revision = source.removeprefix(f"{_SCHEME}datasets/").strip("/").partition("@")
    files = _files_of_splits(source, repository, revision or None, options)
    split = options.split
    if split is None:
        if len(files) > 1:
            raise OptionError(
                f"{source} has the splits {', '.join(files)}: choose one, for example "
                f"fastio.open(..., split={next(iter(files))!r}), or --split {next(iter(files))}"
            )
        (split,) = files
    if split not in files:
        raise OptionError(f"{source} has no split {split!r}. Its splits are {', '.join(files)}")
    names = [name.rpartition("/")[2].lower() for name in files[split]]
    if any(name.endswith(_METADATA) for name in names):
        raise SchemaError(
            f"{source} has metadata of its files in {' or '.join(_METADATA)}, which fastio does "
            "not read: load it with datasets.load_dataset, and pass the result to fastio"
        )
    return HubFiles(source, files[split])


def _is_repository(url: str) -> bool:
    """Returns whether a URL names a dataset, and no file or folder in it."""
    kind, *parts = url.removeprefix(_SCHEME).strip("/").split("/")
    if kind != "datasets" or len(parts) < 2:
        raise OptionError(f"expected {_WANTED}, got {without_secrets(url)}")
    return len(parts) == 2 or (len(parts) == 4 and parts[1].endswith("@refs"))


def _files_of_splits(
    url: str, repository: str, revision: str | None, options: Options
) -> dict[str, list[str]]:
    """Returns the URLs of the files of each split of the chosen configuration."""
    try:
        # Optional packages, whose import takes a second.
        import datasets  # type: ignore[import-untyped]
        from huggingface_hub import errors
    except ImportError as error:
        raise PackageMissing("datasets", f"read {url}", "fastio[hub]", error) from None
    given = options.storage_options or {}
    if "endpoint" in given:
        raise OptionError(
            "the endpoint of the Hub cannot be an option: set the environment variable HF_ENDPOINT"
        )
    token = given.get("token")
    try:
        builder = datasets.load_dataset_builder(
            repository, options.config, revision=revision, token=token
        )
    except (datasets.exceptions.DatasetNotFoundError, errors.RepositoryNotFoundError) as error:
        raise DatasetNotFound(
            f"{url}: {_line(error)} A private dataset needs a token: set HF_TOKEN, or run "
            "`hf auth login`"
        ) from error
    except datasets.exceptions.DataFilesNotFoundError as error:
        raise DatasetNotFound(f"{url} has no data files: {_line(error)}") from error
    except ValueError as error:
        if "config" in str(error).lower():
            raise OptionError(
                f"{url}: {_line(error)} Choose one with fastio.open(..., config=...) or --config"
            ) from error
        raise DatasetNotFound(f"{url}: {_line(error)}") from error
    except (ConnectionError, OSError, errors.HfHubHTTPError) as error:
        raise StoreError(f"{url}: the Hub did not answer: {_line(error)}") from error
    found = builder.config.data_files or {}
    files = {str(split): [str(file) for file in listed] for split, listed in found.items()}
    if not files or not all(files.values()):
        raise DatasetNotFound(f"{url} has no data files")
    return files


def _line(error: Exception) -> str:
    return " ".join(without_secrets(str(error)).split())
