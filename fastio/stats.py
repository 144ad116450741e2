"""Counters of what each stage of a loader did, and how long it waited.

The engine counts the work of its threads (reading, decoding, resampling), the loader counts the
time of its caller (waiting for a batch, using it), and the device counts the time of its copies.
All counters are in one flat `Stats`, so that a report is the difference of two snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

_NO_COUNTERS = ("path", "reason", "order", "transforms", "threads")


@dataclass
class Stats:
    """Counters since the loader (or engine) was made. All times are in seconds.

    A plain value: the engine and the loader each have one, and write it from one thread at a time.
    `after - before` is what happened between two snapshots, which `Loader.stats()` returns.

    Attributes:
        path: "native" (fastio's threads) or "torch" (torch's DataLoader and its workers).
        reason: why the torch path is used; "" on the native path.
        order: how the rows are shuffled, and why, as a sentence; "" before a loader is asked.
        transforms: where the transforms of each field run: in native threads, per sample in
            workers, or on the batch; "" if there are none, or on the torch path.
        batches: number of batches delivered to the caller.
        samples: number of samples in them, without padding.
        bytes_read: bytes read from storage or mapped files.
        bytes_fetched: bytes transferred over the network, for remote datasets.
        retries: requests to a store that failed and were repeated.
        refetched: pieces of remote data (manifests, heads, blocks, row groups) that arrived whole
            but damaged, or were found damaged in the cache, and were fetched again.
        recoded: number of images that this loader has recoded to block records in its cache.
        from_recoded: number of images that were read from these records, whoever wrote them.
        images_decoded: number of images decoded without an error.
        skipped: samples left out of their batch by on_error="skip".
        replaced: samples replaced by another row by on_error="replace".
        read_s: time that threads waited for bytes, summed over threads.
        decode_s: time of entropy decoding and inverse transform, summed over threads.
        resample_s: time of cropping, resizing, flipping and writing rows, summed over threads.
        augment_s: time of operations on pixels, such as ColorJitter, summed over threads.
        sample_s: time in the Python functions of PerSample, summed over workers.
        wait_s: time that the caller waited inside next() for a batch.
        fetch_s: the part of wait_s spent on bytes of a remote dataset that had not arrived.
        transform_s: the part of wait_s spent in Python on a batch: callables, collate_fn, and
            Normalize and ToDtype where the threads do not apply them. (On a GPU: until the kernels
            were launched.)
        between_s: time between next() calls, in which the caller did its own work.
        copy_s: time that copies to the device took on their stream.
        threads: number of native threads at work now (in a mix: per source); 0 if there are none.
            It is not a counter: sums and differences keep the value of the first operand.
    """

    path: Literal["native", "torch"] = "native"
    reason: str = ""
    order: str = ""
    transforms: str = ""
    batches: int = 0
    samples: int = 0
    bytes_read: int = 0
    bytes_fetched: int = 0
    retries: int = 0
    refetched: int = 0
    recoded: int = 0
    from_recoded: int = 0
    images_decoded: int = 0
    skipped: int = 0
    replaced: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    resample_s: float = 0.0
    augment_s: float = 0.0
    sample_s: float = 0.0
    wait_s: float = 0.0
    fetch_s: float = 0.0
    transform_s: float = 0.0
    between_s: float = 0.0
    copy_s: float = 0.0
    threads: int = 0

    @property
    def elapsed_s(self) -> float:
        """The time spent iterating, in seconds: waiting for batches and using them."""
        return self.wait_s + self.between_s

    @property
    def samples_per_s(self) -> float:
        """The throughput: samples delivered per second of iterating; 0.0 before the first batch."""
        return self.samples / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """The fraction of the iteration time that the caller waited for data, 0.0 to 1.0."""
        return self.wait_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def busy_s(self) -> float:
        """The time that native threads worked or waited for reads, summed over threads."""
        return self.read_s + self.decode_s + self.resample_s + self.augment_s

    @property
    def augment_share(self) -> float:
        """The share of `busy_s` that operations on pixels took, 0.0 to 1.0."""
        return self.augment_s / self.busy_s if self.busy_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns all counters, the throughput and the wait share as JSON-ready values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"samples_per_s": self.samples_per_s, "wait_share": self.wait_share}

    def __add__(self, other: Stats) -> Stats:
        """Returns the sum of both, with the texts of this one."""
        return self._combined(other, 1)

    def __sub__(self, earlier: Stats) -> Stats:
        """Returns what happened since `earlier`, a snapshot of the same loader."""
        return self._combined(earlier, -1)

    def _combined(self, other: Stats, sign: int) -> Stats:
        counters = [field.name for field in fields(self) if field.name not in _NO_COUNTERS]
        values = {name: getattr(self, name) + sign * getattr(other, name) for name in counters}
        return replace(self, **values)

    def __str__(self) -> str:
        number = f"{self.threads} " if self.threads else ""
        native = self.path == "native"
        source = f"{number}native threads" if native else f"torch workers ({self.reason})"
        parts = [
            f"{self.samples:,} samples in {self.batches:,} batches by {source}",
            f"{self.samples_per_s:,.0f} samples/s; the caller waited {self.wait_s:.2f} s for data "
            f"and used {self.between_s:.2f} s ({self.wait_share:.0%} waiting)",
        ]
        if self.order:
            parts.append(f"order: {self.order}")
        if self.path == "native":
            parts.append(
                f"threads: read {self.read_s:.2f} s ({self.bytes_read / 1e6:,.1f} MB), decode "
                f"{self.decode_s:.2f} s ({self.images_decoded:,} images), resample "
                f"{self.resample_s:.2f} s, augment {self.augment_s:.2f} s"
            )
        if self.transforms:
            parts.append(f"transforms: {self.transforms}")
        if self.sample_s:
            parts.append(f"workers: {self.sample_s:.2f} s in Python per sample")
        if self.fetch_s or self.transform_s:
            parts.append(
                f"of the waiting: {self.fetch_s:.2f} s for the store, {self.transform_s:.2f} s in "
                "Python's transforms"
            )
        if self.copy_s:
            parts.append(f"device: copies {self.copy_s:.2f} s")
        if self.retries or self.refetched:
            parts.append(
                f"store: {self.retries} requests retried after a failure, {self.refetched} "
                "pieces fetched again because they were damaged"
            )
        if self.recoded or self.from_recoded:
            parts.append(
                f"cache: {self.recoded:,} images recoded, {self.from_recoded:,} read from records"
            )
        if self.skipped or self.replaced:
            parts.append(f"bad samples: {self.skipped} skipped, {self.replaced} replaced")
        return "\n".join(parts)
