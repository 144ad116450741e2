"""Lists of files that rules have found, with what the rules say of the files beside their names."""

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
        separator: What separates the values of a line, of CSV files.
        features: The features of the columns, as `datasets.Features.to_dict` returns them; empty
            if only the files tell.
        labels: Whether the folders of image and sound files are their classes. None: if there are
            several, all files are equally deep, and there is no metadata.
        metadata: The files with metadata of the listed image or sound files.
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
        about: What is known of them. Its name stands for the list in messages.
        files: The paths or URLs.
    """

    def __init__(self, about: About, files: Iterable[str]) -> None:
        super().__init__(files)
        self.about = about

    def __str__(self) -> str:
        return self.about.name

    def __reduce__(self) -> Any:
        return ListedFiles, (self.about, list(self))
