"""What each stage of a loader did and waited for.

The engine counts what its threads do (reading, decoding, resampling), the loader what its caller
does (waiting for a batch, using it), the device what its copies take. All of it is in one flat
`Stats`, so that a report is arithmetic on two snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

_NO_COUNTERS = ("path", "reason", "threads")


@dataclass
class Stats:
    """Counters since the loader (or engine) was made; every time is in seconds.

    A plain value: the engine and the loader each own one and write it from one thread at a time;
    `snapshot()` gives a copy that no longer changes, and `after - before` is what happened between
    two snapshots.

    Attributes:
        path: "native" (this package's threads) or "torch" (torch's DataLoader and its workers).
        reason: why the torch path was taken; "" on the native path.
        batches: batches handed to the caller.
        samples: rows in them, padding not counted.
        bytes_read: bytes read from storage or mapped files.
        bytes_fetched: bytes that came over the network, of remote datasets.
        retries: requests to a store that failed and were made again.
        refetched: pieces of remote data (manifests, heads, blocks, row groups) that arrived whole
            but damaged, or were found damaged in the cache, and were fetched again.
        images_decoded: images that came out whole.
        skipped: samples left out of their batch under on_error="skip".
        replaced: samples whose place another row took under on_error="replace".
        read_s: summed over threads: waiting for bytes.
        decode_s: summed over threads: entropy decoding and inverse transform.
        resample_s: summed over threads: cropping, resizing, flipping, writing the row.
        wait_s: the caller waited inside next() for a batch.
        fetch_s: of wait_s, for bytes of a remote dataset that had not come yet.
        transform_s: of wait_s, Python's part of a batch: callables, collate_fn, and Normalize and
            ToDtype where the threads do not do them. (On a GPU: until they were launched.)
        between_s: the caller was busy between two next() calls: its own work.
        copy_s: the copies to the device took on their stream.
        threads: native threads that work now (of a mix: for each source). No counter: sums and
            differences have that of the first. 0: none of this package's.
    """

    path: Literal["native", "torch"] = "native"
    reason: str = ""
    batches: int = 0
    samples: int = 0
    bytes_read: int = 0
    bytes_fetched: int = 0
    retries: int = 0
    refetched: int = 0
    images_decoded: int = 0
    skipped: int = 0
    replaced: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    resample_s: float = 0.0
    wait_s: float = 0.0
    fetch_s: float = 0.0
    transform_s: float = 0.0
    between_s: float = 0.0
    copy_s: float = 0.0
    threads: int = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds spent iterating: waiting for batches and using them."""
        return self.wait_s + self.between_s

    @property
    def samples_per_s(self) -> float:
        """Samples handed over a second of iterating (0.0 before the first batch)."""
        return self.samples / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """The part of the time iterating that the caller waited for data, 0.0 to 1.0."""
        return self.wait_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def snapshot(self) -> Stats:
        """A copy that later work does not change."""
        return replace(self)

    def to_dict(self) -> dict[str, Any]:
        """All counters and the derived rates, as JSON-ready values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"samples_per_s": self.samples_per_s, "wait_share": self.wait_share}

    def __add__(self, other: Stats) -> Stats:
        """Both together, under this one's path and reason."""
        return self._combined(other, 1)

    def __sub__(self, earlier: Stats) -> Stats:
        """What happened since `earlier`, a snapshot of the same loader."""
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
        if self.path == "native":
            parts.append(
                f"threads: read {self.read_s:.2f} s ({self.bytes_read / 1e6:,.1f} MB), decode "
                f"{self.decode_s:.2f} s ({self.images_decoded:,} images), resample "
                f"{self.resample_s:.2f} s"
            )
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
        if self.skipped or self.replaced:
            parts.append(f"bad samples: {self.skipped} skipped, {self.replaced} replaced")
        return "\n".join(parts)
