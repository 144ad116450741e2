"""Lists of the files of a dataset, with the format, features and labels of these files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Names of files that describe the images or sound files beside them.
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


@dataclass(frozen=True)
class About:
    """What is known of listed files.

    Attributes:
        name: What the list is called in messages: the URL or the folder of the dataset.
        table: The format of table files, as `table_kind` returns it, or "text"; None if the files
            are no tables.
        separator: The separator of values in a line, for CSV files.
        features: The features of the columns, as `datasets.Features.to_dict` returns them; empty
            if the features are found in the files.
        labels: Whether the folders of image and sound files are their classes. None: only if there
            are several folders, all files are at the same depth, and there is no metadata.
        metadata: The metadata files that describe the listed image or sound files.
    """

    name: str
    table: str | None = None
    separator: str = ","
    features: Mapping[str, Any] = field(default_factory=dict)
    labels: bool | None = None
    metadata: tuple[str, ...] = ()


class ListedFiles(list[str]):
    """Paths or URLs of files that belong together.

    Args:
        about: What is known of the files. Messages use its name for the list.
        files: The paths or URLs.
    """

    def __init__(self, about: About, files: Iterable[str]) -> None:
        super().__init__(files)
        self.about = about

    def __str__(self) -> str:
        return self.about.name

    def __reduce__(self) -> Any:
        return ListedFiles, (self.about, list(self))
