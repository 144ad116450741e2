"""Every error that fastio raises on purpose, as one tree.

Each leaf also inherits the builtin that people already catch::

    FastioError (Exception)
    |-- SourceNotFound (FileNotFoundError)    no such file, folder or shard
    |   `-- DatasetNotFound                   a folder without a manifest
    |-- DatasetExists (FileExistsError)       the destination already holds a dataset
    |-- StoreError (OSError)                  an object of a URL cannot be read, written or listed
    |-- SourceChanged (ValueError)            data was replaced after it was opened
    |-- ManifestInvalid (ValueError)          manifest.arrow is damaged or not fastio's
    |-- FormatUnsupported (ValueError)        fastio does not read this format, or its version
    |-- ShardCorrupt (ValueError)             a shard is truncated, damaged or of another dataset
    |-- SchemaError (ValueError)              a value does not fit its field, or a bad schema
    |-- OptionError (ValueError)              an option is not possible, or not here
    |-- SampleError (ValueError)              one sample cannot be read
    |   |-- ImageError                        its image cannot be decoded
    |   |-- AudioError                        its sound file cannot be decoded
    |   `-- PerSampleError                    a function of a PerSample raised an error for it
    |-- TransformError (TypeError)            a transform that fastio cannot apply
    |-- CacheError (OSError)                  a cache folder cannot be used
    |-- PackError (RuntimeError)              packing or exporting cannot start or continue
    |   `-- PackConflict                      another process packs to the destination
    |-- StateMismatch (ValueError)            a loader state belongs to other data
    |-- TrainError (RuntimeError)             training cannot start or continue
    |   `-- CheckpointError                   a checkpoint is damaged or of another run
    |-- BenchError (ValueError)               a benchmark is not possible
    |   `-- MeasuredInvalid                   a file does not hold benchmark results
    |-- WorkerDied (RuntimeError)             a worker process of a PerSample or a pack was killed
    |-- LoaderTimeout (TimeoutError)          no batch within the loader's timeout
    |-- LoaderClosed (RuntimeError)           the loader was closed
    |-- DatasetClosed (ValueError)            the dataset was closed
    |-- PackageMissing (ImportError)          an optional package is not installed
    `-- BuildMissing (ImportError)            the native module is not built

`PerformanceWarning` and `ShardingWarning` are UserWarnings and not part of the tree.

A message says what happened, where, what was found and expected, and what to do.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from fastio.shown import shown_lines, without_addresses


class FastioError(Exception):
    """The base class of all errors that fastio raises on purpose.

    `str(error)` never contains control characters or credentials of URLs.
    """

    def __str__(self) -> str:
        return shown_lines(super().__str__())


class SourceNotFound(FastioError, FileNotFoundError):
    """A file, folder or shard does not exist or cannot be used as data."""


class DatasetNotFound(SourceNotFound):
    """A path holds no packed dataset: it has no manifest."""


class DatasetExists(FastioError, FileExistsError):
    """The destination of a pack already holds a dataset."""


class StoreError(FastioError, OSError):
    """An object of a URL could not be read, written or listed, or not before the deadline."""


class SourceChanged(FastioError, ValueError):
    """A file or an object was replaced by another version after it was opened."""


class ManifestInvalid(FastioError, ValueError):
    """A manifest is truncated, damaged or was not written by fastio."""


class FormatUnsupported(FastioError, ValueError):
    """The format of the data, or its version, is not one that fastio reads."""


class ShardCorrupt(FastioError, ValueError):
    """A shard is truncated or damaged, or is not the file that the manifest describes."""


class SchemaError(FastioError, ValueError):
    """A value does not fit its field, or a schema is not possible."""


class OptionError(FastioError, ValueError):
    """An option has an impossible value, contradicts another one, or does not apply to the data."""


class SampleError(FastioError, ValueError):
    """One sample cannot be read.

    Attributes:
        dataset: path or name of the dataset or source.
        row: row number of the sample in it, from 0.
        name: the path of the file, or the shard and row.
        cause: the underlying error, or a sentence that says what is wrong.
    """

    def __init__(self, dataset: str, row: int, name: str, cause: BaseException | str) -> None:
        # All four are `args`, so that the error survives pickling between processes.
        super().__init__(dataset, row, name, cause)
        self.dataset = dataset
        self.row = row
        self.name = name
        self.cause = cause

    def __str__(self) -> str:
        reason = str(self.cause) or type(self.cause).__name__
        return shown_lines(f"{self.name}: {reason} (row {self.row} of {self.dataset})")


class ImageError(SampleError):
    """The image of a sample cannot be decoded, or cannot be decoded without loss."""


class AudioError(SampleError):
    """The sound file of a sample cannot be decoded, or does not have the required format."""


class PerSampleError(SampleError):
    """A function that runs once per sample raised an error for a sample.

    `cause` has the function, the error and its traceback; `__cause__` is the error itself, if it
    can be pickled.
    """


class TransformError(FastioError, TypeError):
    """A transform is unknown, or does not fit the field that it is given for."""


class CacheError(FastioError, OSError):
    """A cache folder cannot be used: it holds something else, or cannot be written."""


class PackError(FastioError, RuntimeError):
    """Packing or exporting cannot start or cannot continue."""


class PackConflict(PackError):
    """Another process packs to the same destination, or has appended to it since a pack began."""


class StateMismatch(FastioError, ValueError):
    """A loader state was taken from other data or other settings."""


class TrainError(FastioError, RuntimeError):
    """Training cannot start, or cannot continue."""


class CheckpointError(TrainError):
    """A checkpoint is damaged, or was saved by a run with other data, model or options."""


class BenchError(FastioError, ValueError):
    """The requested benchmark is not possible here, or not with this data."""


class MeasuredInvalid(BenchError):
    """A JSON file does not hold benchmark results, or holds them in another format."""


class ShardingWarning(UserWarning):
    """A loader delivers all of the data to each of several processes and was not told to do so."""


class WorkerDied(FastioError, RuntimeError):
    """A worker process ended that ran a PerSample, or that read a Python dataset for a pack."""


class LoaderTimeout(FastioError, TimeoutError):
    """No batch came within the loader's timeout."""


class LoaderClosed(FastioError, RuntimeError):
    """The loader was used after `close()`."""


class DatasetClosed(FastioError, ValueError):
    """A dataset was read after `close()`."""


class PackageMissing(FastioError, ImportError):
    """An optional package is not installed, or cannot be imported.

    Attributes:
        package: name of the package.
        purpose: what it is needed for, such as "decode sound".
        requirement: what to install, such as "fastio[audio]".
        cause: the underlying error.
    """

    def __init__(
        self, package: str, purpose: str, requirement: str, cause: BaseException | str
    ) -> None:
        # All four are `args`, so that the error survives pickling between processes.
        super().__init__(package, purpose, requirement, str(cause))
        self.package = package
        self.purpose = purpose
        self.requirement = requirement
        self.cause = str(cause)

    def __str__(self) -> str:
        return shown_lines(
            f"{self.package} is needed to {self.purpose}: pip install {self.requirement!r} "
            f"({self.cause})"
        )


class BuildMissing(FastioError, ImportError):
    """The native module is not built or cannot be loaded."""


class PerformanceWarning(UserWarning):
    """A loader or pack works, but slowly or with more memory. The message says what to do."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning at the line that called fastio, whatever the depth of this call."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(without_addresses(shown_lines(message)), category, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "fastio"
