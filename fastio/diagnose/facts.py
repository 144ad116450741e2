"""The facts that the probes find, as frozen JSON-ready values. Unknown values are None."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Storage = Literal["disk", "memory", "network"]
StepKind = Literal[
    "decode",
    "crop",  # crops, resizes and flips
    "augment",  # operations on pixels that fastio has natively, such as ColorJitter
    "convert",  # to tensors and floats, Normalize
    "python",  # functions that fastio does not know and therefore runs in Python, too
]


@dataclass(frozen=True)
class MachineFacts:
    """Facts of the machine, or of the container.

    Attributes:
        cpu: the processor's name.
        cores: cores that this process may use, by affinity and quota.
        simd: instruction sets of the native code: "avx512" (with VBMI), "avx512bw", "avx2",
            "sve2", "neon" or "portable".
        memory_bytes: memory of the machine, or the container's limit.
        torch: version of torch.
        device: destination of batches: "cpu", or the name of the GPU.
        date: date of the measurement, ISO 8601, UTC.
        allowed_cores: cores by affinity alone; 0 if unknown.
        available_bytes: memory that is available now; 0 if unknown.
        quota: CPU quota of the container, in cores.
        throttled_share: share of the quota's periods that were throttled.
        others_cores: mean number of cores that other processes used during the measurement.
        swapped_bytes: swap space in use, by all processes.
        shm_bytes: size of /dev/shm.
        open_files, most_open_files: soft and hard limit of open files.
        huge_pages: transparent huge pages: "always", "madvise" or "never".
        container: whether the process seems to run in a container.
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
    """Settings of torch and of the environment in this process.

    Attributes:
        torch_cuda: CUDA version that torch was built for; None for a CPU build.
        torch_threads: threads of operators on the CPU.
        omp_threads: OMP_NUM_THREADS; None if it is not set.
        allocator: memory allocator: "malloc", "jemalloc", "tcmalloc" or "mimalloc".
        other_allocator: path of another allocator that is installed.
        local_ranks: processes of the job on this machine.
        nvidia: whether the machine has an NVIDIA device, even if torch does not see it.
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
    """Facts of the first CUDA device.

    Attributes:
        name, count: name and number of the devices.
        capability: compute capability, (major, minor).
        memory_bytes: memory of one device.
        tf32, cudnn_benchmark: torch's settings in this process.
        pinned_bytes_s, pageable_bytes_s: copies to the device, in bytes per second.
        link, best_link: PCIe generation and lanes, under load and at most.
        flops: operations per second of a matrix product, by "float32", "tf32", "bfloat16".
        channels_last_gain: speed-up of a convolution by channels-last memory.
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
    """Facts of a dataset.

    Attributes:
        path: path as given.
        kind: kind of data: "packed", "folder", "tars", "tables" (also packed ones,
            see `packed`), "tokens", "sounds", "hugging_face", or another word.
        codecs: number of images by codec; empty if there are none or the codec is unknown.
        rows: number of samples; of those that were listed if `complete` is False.
        nbytes: bytes of the files, likewise.
        read_bytes: measured bytes read per sample; 0.0 if not measured.
        storage: where the files are stored.
        packed: whether `fastio pack` wrote it.
        files: number of files.
        complete: False if there was no time to list all files.
        remote: whether the data is behind a URL.
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
        """The mean bytes per sample: bytes read if measured, else bytes stored."""
        return self.read_bytes or (self.nbytes / self.rows if self.rows else 0.0)

    @property
    def codec(self) -> str:
        """The codec of most images; "" if there are none."""
        return max(self.codecs, key=lambda codec: self.codecs[codec], default="")

    @property
    def noun(self) -> str:
        """What samples are called: "images", "rows" or "samples"."""
        return "images" if self.codec else "rows" if self.kind == "tables" else "samples"

    @property
    def what(self) -> str:
        """The kind of data with whether it is packed: "folder", "packed", "packed tables"."""
        return f"packed {self.kind}" if self.packed and self.kind != "packed" else self.kind


@dataclass(frozen=True)
class StorageFacts:
    """How fast the dataset's files are read.

    Attributes:
        file_system: type of the file system: "ext4", "nfs4", "overlay", ...
        network: whether it is a network file system.
        rotating: whether the disk is a rotating one.
        resident_share: share of the dataset's pages that are in the page cache.
        read_bytes: size of a random read, about one sample.
        cold_reads_s, cold_reads_parallel_s: random reads per second from disk, one and eight at
            a time.
        sequential_bytes_s: bytes per second of a sequential read from disk.
        write_bytes_s: bytes per second written to the scratch folder, if one was given.
        cold_loader_s: images per second of a loader that reads from disk.
    """

    file_system: str
    network: bool = False
    rotating: bool | None = None
    resident_share: float | None = None
    read_bytes: float | None = None
    cold_reads_s: float | None = None
    cold_reads_parallel_s: float | None = None
    sequential_bytes_s: float | None = None
    write_bytes_s: float | None = None
    cold_loader_s: float | None = None


@dataclass(frozen=True)
class Trial:
    """A part of the data that was packed as a trial.

    Attributes:
        codec: "blocks" or "raw"; "" for tables.
        max_side: longer side that images were resized to; None if they were not.
        samples: number of samples; 0 if unknown.
        rate: samples per second of a loader with `threads`.
        bytes_share: packed size relative to the original size; None if unknown.
        before_rate: samples per second of the same samples unpacked, measured in turns with
            `rate`; None if not measured.
    """

    codec: str
    max_side: int | None
    samples: int
    rate: float
    bytes_share: float | None
    before_rate: float | None = None


@dataclass(frozen=True)
class StepFacts:
    """How long a worker of torch's DataLoader takes for one step of a sample.

    Attributes:
        name: "decode", or a short name of the transform.
        kind: what the step does.
        seconds: seconds per sample, in one process.
    """

    name: str
    kind: StepKind
    seconds: float


def spent(steps: Iterable[StepFacts], *kinds: StepKind) -> float:
    """Returns the seconds per sample in the steps of the given kinds; in all steps without any."""
    return sum(step.seconds for step in steps if not kinds or step.kind in kinds)


@dataclass(frozen=True)
class ImageFacts:
    """Facts of a dataset's images, from a sample, and how fast they are decoded from memory.

    Attributes:
        sampled: number of images in the sample.
        formats: share of each format, by Pillow's names ("JPEG", "PNG", ...).
        progressive, cmyk, rotated: share of progressive JPEGs, of CMYK images, and of images that
            EXIF rotates.
        mean_bytes, mean_pixels: means per image.
        short_side, long_side: medians, in pixels.
        threads: threads of the loader that was measured.
        rate, one_thread_rate: images a second of fastio.Loader, cropped and resized, with
            `threads` and with one.
        used: (threads, rate) of a loader with the user's number of threads.
        pillow_rate: images per second of one process that decodes with Pillow and transforms in
            Python.
        steps: the time of each step in this process, in order.
        augment_share: share of the busy time of fastio's threads that operations on pixels take.
        trials: parts of the data packed as trials.
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
    steps: tuple[StepFacts, ...] = ()
    augment_share: float = 0.0
    trials: tuple[Trial, ...] = ()

    @property
    def scaling(self) -> float | None:
        """The rate with `threads` relative to that with one thread; None if not measured."""
        if not self.rate or not self.one_thread_rate or self.threads == 1:
            return None
        return self.rate / self.one_thread_rate


@dataclass(frozen=True)
class TableFacts:
    """Facts of tables, from their first files, and how fast their rows are loaded.

    Attributes:
        format: "parquet", "arrow", "csv", "jsonl", "tokens" (token files) or "packed".
        columns: number of columns.
        row_groups: number of row groups in the files that were read.
        group_rows, group_bytes: rows and decoded bytes of a row group, medians.
        compressions: compressions of the columns, for Parquet.
        text_columns: number of string columns that are not dictionary-encoded.
        threads: threads of the loader that was measured.
        rate: rows per second of fastio.Loader.
        trial: a part of the data packed as a trial.
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
    """How fast a store answers.

    Attributes:
        backend: client library: "obstore" or "fsspec".
        latency_s: median latency of a request for one kilobyte.
        stream_bytes_s: bytes per second with one request at a time.
        parallel_bytes_s: bytes per second with eight requests at a time.
        decode_rate: samples per second of the loader once the data has been fetched.
        cache_bytes: bytes that the cache holds and that are free on its disk; None without a cache.
        cache_file_system: type of the cache's file system.
        loader_bytes_s: bytes per second of a loader that only waits for the network; None if it
            waited for something else, or fetched too little to measure.
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
    """All facts that the probes found.

    Attributes:
        machine, settings, gpu, data, storage, images, tables, remote: facts of each family of
            probes; None if it does not apply or has failed.
        notes: what failed or was left out for lack of time, one sentence each.
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

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        return asdict(self)
