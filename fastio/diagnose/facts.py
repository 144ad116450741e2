"""What the probes found out: plain frozen values, ready for JSON. Unknown is None."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Storage = Literal["disk", "memory", "network"]


@dataclass(frozen=True)
class MachineFacts:
    """The machine, or the container, and what computes on it.

    Attributes:
        cpu: the processor's name.
        cores: that this process may use, by affinity and quota.
        simd: the instruction set that the native code takes: "avx512", "avx2" or "portable".
        memory_bytes: of the machine, or of the container's limit.
        torch: its version.
        device: where batches go: "cpu", or the name of the GPU.
        date: when this was found out, ISO 8601, UTC.
        allowed_cores: by affinity alone; 0: not known.
        available_bytes: of memory, that could be had now; 0: not known.
        quota: cores' worth of time that the container's quota allows.
        throttled_share: of the quota's periods, those in which it was used up.
        others_cores: cores that other processes kept busy meanwhile, on average.
        swapped_bytes: of all processes, in swap space.
        shm_bytes: size of /dev/shm.
        open_files, most_open_files: the limit, and what a process may raise it to.
        huge_pages: "always", "madvise" or "never".
        container: whether it looks like one.
    """

    cpu: str
    cores: int
    simd: str
    memory_bytes: int
    torch: str = ""
    device: str = "cpu"
    date: str = ""
    allowed_cores: int = 0
    available_bytes: int = 0
    quota: float | None = None
    throttled_share: float | None = None
    others_cores: float | None = None
    swapped_bytes: int | None = None
    shm_bytes: int | None = None
    open_files: int | None = None
    most_open_files: int | None = None
    huge_pages: str | None = None
    container: bool = False


@dataclass(frozen=True)
class SettingsFacts:
    """What torch and the environment are set to, in this process.

    Attributes:
        torch_cuda: the CUDA version that torch was built for; None: it has none.
        torch_threads: that operators on the CPU use.
        omp_threads: OMP_NUM_THREADS, where it is set.
        allocator: "malloc", "jemalloc", "tcmalloc" or "mimalloc".
        other_allocator: path of a library of another one on this machine.
        local_ranks: processes of the job on this machine.
        nvidia: whether there is an NVIDIA device, whatever torch knows of it.
    """

    torch_cuda: str | None
    torch_threads: int
    omp_threads: int | None = None
    allocator: str = "malloc"
    other_allocator: str | None = None
    local_ranks: int = 1
    nvidia: bool = False


@dataclass(frozen=True)
class GpuFacts:
    """The first CUDA device.

    Attributes:
        name, count: of the devices.
        capability: compute capability, (major, minor).
        memory_bytes: of one.
        tf32, cudnn_benchmark: torch's settings, as they are without a program's own.
        pinned_bytes_s, pageable_bytes_s: copies to it, bytes a second.
        link, best_link: PCIe generation and lanes, (now under load, possible).
        flops: measured rates of a matrix product by "float32", "tf32", "bfloat16", a second.
        channels_last_gain: a convolution's time in the contiguous layout / in channels_last.
    """

    name: str
    count: int
    capability: tuple[int, int]
    memory_bytes: int
    tf32: bool
    cudnn_benchmark: bool
    pinned_bytes_s: float | None = None
    pageable_bytes_s: float | None = None
    link: tuple[int, int] | None = None
    best_link: tuple[int, int] | None = None
    flops: dict[str, float] = field(default_factory=dict)
    channels_last_gain: float | None = None


@dataclass(frozen=True)
class DataFacts:
    """What the data is.

    Attributes:
        path: as given.
        kind: what a loader takes it for: "packed", "folder", "tars", "tables" (also packed ones,
            see `packed`), "tokens", "sounds", "hugging_face", or another word.
        codecs: of the images, rows by codec; empty where there are none, or none is known.
        rows: samples; of a part where `complete` is False.
        nbytes: of the files, likewise.
        read_bytes: measured bytes read for a sample; 0.0: not measured.
        storage: where the files are.
        packed: whether `fastio pack` wrote it.
        files: how many there are.
        complete: False: there was no time to look at all files.
        remote: whether it is behind a URL.
    """

    path: str
    kind: str
    codecs: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    nbytes: int = 0
    read_bytes: float = 0.0
    storage: Storage = "disk"
    packed: bool = False
    files: int = 0
    complete: bool = True
    remote: bool = False

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample, on average: those read, or else those stored."""
        return self.read_bytes or (self.nbytes / self.rows if self.rows else 0.0)

    @property
    def codec(self) -> str:
        """How most images are stored; "" where there are none."""
        return max(self.codecs, key=lambda codec: self.codecs[codec], default="")


@dataclass(frozen=True)
class StorageFacts:
    """How the dataset's own files are read.

    Attributes:
        file_system: its type: "ext4", "nfs4", "overlay", ...
        network: whether it is another machine's.
        rotating: whether the disk is one that turns.
        resident_share: of the dataset's pages, those that are in memory.
        read_bytes: of a read of the random ones: about a sample.
        cold_reads_s, cold_reads_parallel_s: such reads a second from the disk, one at a time and
            eight at a time.
        sequential_bytes_s: a large file from its beginning, from the disk.
        warm_reads_s: such reads a second from memory, one at a time.
        write_bytes_s: to the scratch folder, where one was given.
        cold_loader_s: images a second of a loader whose images come from the disk.
    """

    file_system: str
    network: bool = False
    rotating: bool | None = None
    resident_share: float | None = None
    read_bytes: float | None = None
    cold_reads_s: float | None = None
    cold_reads_parallel_s: float | None = None
    sequential_bytes_s: float | None = None
    warm_reads_s: float | None = None
    write_bytes_s: float | None = None
    cold_loader_s: float | None = None


@dataclass(frozen=True)
class Trial:
    """A part of the data, packed as a trial.

    Attributes:
        codec: "blocks" or "raw"; "" of tables.
        max_side: that images were shrunk to; None: they were not.
        samples: how many.
        rate: samples a second of a loader with `threads`.
        bytes_share: size / that of the same samples as they were.
        before_rate: samples a second of the same samples as they are, measured in turns with
            `rate`; None: they were not.
    """

    codec: str
    max_side: int | None
    samples: int
    rate: float
    bytes_share: float
    before_rate: float | None = None


@dataclass(frozen=True)
class ImageFacts:
    """What images there are, by a sample, and how fast they are decoded from memory.

    Attributes:
        sampled: images looked at.
        formats: share of each format, as Pillow names them ("JPEG", "PNG", ...).
        progressive, cmyk, rotated: share of all that are progressive JPEGs, that are CMYK, that
            EXIF turns.
        mean_bytes, mean_pixels: of an image.
        short_side, long_side: pixels, medians.
        threads: that the loader was measured with.
        rate, one_thread_rate: images a second of fastio.Loader, cropped and resized, with
            `threads` and with one.
        used: (threads, rate) of a loader as the user has it, where that has other threads or not.
        pillow_rate: images a second of one process that opens, crops and resizes with Pillow.
        trials: of parts packed.
    """

    sampled: int
    formats: dict[str, float] = field(default_factory=dict)
    progressive: float = 0.0
    cmyk: float = 0.0
    rotated: float = 0.0
    mean_bytes: float = 0.0
    mean_pixels: float = 0.0
    short_side: int = 0
    long_side: int = 0
    threads: int = 1
    rate: float | None = None
    one_thread_rate: float | None = None
    used: tuple[int, float] | None = None
    pillow_rate: float | None = None
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class TableFacts:
    """What tables there are, by their first files, and how fast rows come.

    Attributes:
        format: "parquet", "arrow", "csv", "jsonl", "packed".
        columns: how many.
        row_groups: of the files looked at.
        group_rows, group_bytes: of a row group, medians; bytes decoded.
        compressions: of Parquet: of its columns.
        text_columns: of strings that are not dictionary-encoded.
        threads: that the loader was measured with.
        rate: rows a second of fastio.Loader.
        trial: a part packed.
    """

    format: str
    columns: int = 0
    row_groups: int = 0
    group_rows: int = 0
    group_bytes: int = 0
    compressions: tuple[str, ...] = ()
    text_columns: int = 0
    threads: int = 1
    rate: float | None = None
    trial: Trial | None = None


@dataclass(frozen=True)
class RemoteFacts:
    """How a store answers.

    Attributes:
        backend: the library that asks: "obstore" or "fsspec".
        latency_s: of a request for a kilobyte, median.
        stream_bytes_s: one request at a time.
        parallel_bytes_s: eight at a time.
        decode_rate: samples a second that the threads manage when bytes are there.
        cache_bytes: room for the cache: what it holds and what is free on its disk; None: no cache.
        cache_file_system: the type of the file system that it is on.
        loader_bytes_s: that a loader fetched which waited for nothing else; None: it did, or too
            little came to tell.
    """

    backend: str
    latency_s: float | None = None
    stream_bytes_s: float | None = None
    parallel_bytes_s: float | None = None
    decode_rate: float | None = None
    cache_bytes: int | None = None
    cache_file_system: str | None = None
    loader_bytes_s: float | None = None


@dataclass(frozen=True)
class Facts:
    """All that was found out.

    Attributes:
        machine, settings, gpu, data, storage, images, tables, remote: of each family of probes;
            None where there is nothing of it, or where it failed.
        notes: what failed, or was left out for want of time: a sentence each.
    """

    machine: MachineFacts | None = None
    settings: SettingsFacts | None = None
    gpu: GpuFacts | None = None
    data: DataFacts | None = None
    storage: StorageFacts | None = None
    images: ImageFacts | None = None
    tables: TableFacts | None = None
    remote: RemoteFacts | None = None
    notes: tuple[str, ...] = ()

    def replaced(self, **parts: Any) -> Facts:
        """The same with other parts."""
        return replace(self, **parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return asdict(self)
