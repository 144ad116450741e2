"""Rules of images, tables, disk and network: packing, formats, sizes, memory for the data."""

from __future__ import annotations

from typing import Any

from fastio.diagnose import thresholds
from fastio.diagnose.cases import Case
from fastio.diagnose.costs import Costs
from fastio.diagnose.facts import spent
from fastio.diagnose.rules.rule import Rule
from fastio.diagnose.rules.stages import disk_or_network, in_memory
from fastio.diagnose.words import steps_line


def _smaller(case: Case) -> dict[str, Any]:
    """Returns the values for packing smaller images."""
    side = case.shrunk.max_side
    return {"trial": case.shrunk, "pack": case.how_to_pack(f" --max-side {side}")}


def _data_loader(case: Case) -> dict[str, Any] | None:
    """Returns the rates of DataLoader's workers and of fastio, for images in a folder."""
    if case.data.kind != "folder":
        return None
    # More workers than cores do not increase the throughput.
    count = min(case.threads, case.images.threads)
    workers, rate = case.images.pillow_rate * count, case.use.model_rate
    compute_s = 1 / rate if rate else 0.0
    before, after = (
        Costs(prep_s=1 / one, compute_s=compute_s) for one in (workers, case.loader_rate)
    )
    return {
        "count": count,
        "workers": workers,
        "gain": before.gain_of(after),
        "before_s": before.sample_s() * case.data.rows,
        "after_s": after.sample_s() * case.data.rows,
    }


def _augmentation(case: Case) -> dict[str, Any] | None:
    """Returns the values of the finding on augmentation in Python, if it takes a notable share."""
    steps, found = case.images.steps, _data_loader(case)
    part_s, whole_s = spent(steps, "augment"), spent(steps)
    if found is None or part_s <= thresholds.MANY_IMAGES * whole_s:
        return None
    native, unknown = (
        ", ".join(step.name for step in steps if step.kind == kind)
        for kind in ("augment", "python")
    )
    return found | {
        "share": part_s / whole_s,
        "native": native,
        "unknown": unknown or None,
        "each": steps_line(steps),
        "whole": whole_s * 1e3,
        "augment_share": case.images.augment_share,
    }


def _no_augmentation(case: Case) -> dict[str, Any] | None:
    """Returns the values of `_data_loader`, or None if `_augmentation` has a finding instead."""
    return None if _augmentation(case) else _data_loader(case)


def _for_pillow(case: Case) -> dict[str, Any] | None:
    """Returns the formats that the native decoder leaves to Pillow, if they are many."""
    images, trial = case.images, case.trial
    share = 1.0 - images.formats.get("JPEG", 0.0) + images.cmyk if images.formats else 0.0
    names = [f"{name} {part:.0%}" for name, part in images.formats.items() if name != "JPEG"]
    names += [f"CMYK JPEG {images.cmyk:.0%}"] if images.cmyk else []
    found = {"share": min(share, 1.0), "names": ", ".join(names)}
    return found if trial and share >= thresholds.MANY_IMAGES else None


_IMAGES = (
    Rule(
        "files",
        _smaller,
        "images of {images.short_side:,} x {images.long_side:,} pixels for crops of {use.crop}",
        "{pack} (this changes the images)",
        (
            "{trial.rate:,.0f} images/s from {trial.samples} of them shrunk in a trial, "
            "{trial.before_rate:,.0f} as they are",
            "{trial.bytes_share:.2f} x the size",
        ),
        after=lambda c: c.packed(c.shrunk),
    ),
    Rule(
        "decode",
        _no_augmentation,
        "a DataLoader with Pillow would wait for its workers",
        "use fastio.Loader({data.path!r}, ...) in place of DataLoader",
        (
            "{loader_rate:,.0f} images/s by fastio, {images.pillow_rate:,.0f} a worker by Pillow "
            "({workers:,.0f} by {count} at best)",
        ),
    ),
    Rule(
        "augment",
        _augmentation,
        "augmentation in Python takes {share:.0%} of an epoch of a DataLoader: {native}",
        "replace DataLoader by fastio.Loader, with the same dataset and transforms: its threads "
        "run {native} natively",
        (
            "an epoch takes {before_s:seconds} with {count:workers} of a DataLoader, at best; "
            "{after_s:seconds} predicted with fastio's native augmentation",
            "a worker takes {whole:,.1f} ms for a sample: {each}",
            "{augment_share:.0%} of the work of fastio's threads is augmentation",
            "not known to fastio, so it stays in Python, in worker processes: {unknown}",
        ),
    ),
    Rule(
        "files",
        lambda c: c.images.progressive >= thresholds.MANY_IMAGES,
        "{images.progressive:.0%} of the images are progressive JPEGs, which are decoded whole",
        "pack them (blocks have no scans), or jpegtran FILE without -progressive; nothing is lost",
    ),
    Rule(
        "files",
        _for_pillow,
        "Pillow decodes {share:.0%} of the images: {names}",
        "fastio pack with --codec raw (lossless, large) or --quality 90 (makes them JPEGs)",
    ),
)

# --- Tables ---------------------------------------------------------------------------------------

_NATIVE = {"SNAPPY", "UNCOMPRESSED"}  # compressions that the native decoder knows
_GROUP = "row groups of {tables.group_rows:,} rows, {tables.group_bytes:size}: "
_WRITE_GROUPS = "write them with row groups of 50,000 to 200,000 rows (row_group_size=), or pack"


def _small_groups(case: Case) -> bool:
    """Returns whether row groups are so small that each costs a read and some Python."""
    tables = case.tables
    many = tables.format == "parquet" and tables.row_groups > thresholds.MANY_ROW_GROUPS
    return many and tables.group_rows < thresholds.SMALL_ROW_GROUP  # type: ignore[no-any-return]


_TABLES = (
    Rule(
        "decode",
        lambda c: c.tables.format in ("csv", "jsonl") and {"files": c.tables.format.upper()},
        "{files} files are parsed and held in memory as a whole",
        "`fastio pack {data.path} PACKED`, then Loader('PACKED')",
    ),
    Rule("files", _small_groups, _GROUP + "each costs a read", _WRITE_GROUPS),
    Rule(
        "files",
        lambda c: (
            c.tables.format == "parquet"
            and c.tables.group_bytes >= thresholds.LARGE_ROW_GROUP
            and not _small_groups(c)
        ),
        _GROUP + "memory holds few of them",
        _WRITE_GROUPS,
    ),
    Rule(
        "decode",
        lambda c: (
            (rest := sorted(set(c.tables.compressions) - _NATIVE))
            and {"compressions": ", ".join(rest)}
        ),
        "columns compressed by {compressions} are decoded by pyarrow, not natively",
        'write them with compression="snappy", or pack',
    ),
    Rule(
        "transform",
        lambda c: c.tables.text_columns,
        "{tables.text_columns} columns of strings come as lists of Python strings",
        "dictionary-encode them (numbers and a vocabulary), or leave them out: columns=",
    ),
)

# --- Disk and network -----------------------------------------------------------------------------

_SHARED = ("overlay", "fuse")
_OBSTORE = ("s3://", "gs://", "az://", "http://", "https://")


def _first_epoch(case: Case) -> dict[str, Any] | None:
    """Returns the values of data that fits in memory but is not there yet."""
    storage, data, cold, sample_s = (
        case.facts.storage,
        case.data,
        case.cold_rate,
        case.now.sample_s(),
    )
    share = storage.resident_share if storage is not None else None
    missing = 1.0 - (share or 0.0)
    slow = 1 / cold >= thresholds.COLD_FIRST_EPOCH * sample_s
    if not (
        case.in_memory
        and missing >= thresholds.NOT_IN_MEMORY
        and slow
        and data.rows
        and case.storage
    ):
        return None
    seconds, epochs = data.rows * missing * (1 / cold - sample_s), case.use.epochs
    gain = 1 + seconds / (epochs * data.rows * sample_s) if epochs else None
    return {"missing": missing, "seconds": seconds, "gain": gain}


_STORAGE = (
    Rule(
        disk_or_network,
        _first_epoch,
        "the first epoch waits {seconds:,.0f} s for the disk; later epochs read from memory",
        "long runs need no change; for short runs (see --epochs) a faster disk or smaller data",
        (
            "{cold_rate:,.0f} samples/s from the disk, {missing:.0%} of the data is not in memory "
            "now",
        ),
    ),
    Rule(
        "network",
        lambda c: c.remote and c.data and c.use.cache is not None and c.cached_share < 1.0,
        "the cache has room for {cached_share:.0%} of the data: every epoch fetches the rest",
        "use a larger disk, or smaller data (fastio pack --max-side)",
        ("{remote.cache_bytes:size} for {data.nbytes:size}",),
        after=in_memory,
    ),
    Rule(
        "fetch",
        lambda c: (
            c.use.cache is not None
            and c.remote.cache_file_system.startswith(("nfs", "cifs", "smb", *_SHARED))
        ),
        "the cache is on {remote.cache_file_system}, which is not a local disk",
        "use a folder on a local disk, such as NVMe",
    ),
    Rule(
        "network",
        lambda c: c.remote.backend == "fsspec" and c.data.path.startswith(_OBSTORE),
        "this store is read through fsspec, in Python",
        "give only storage_options that obstore takes (docs/remote.md)",
    ),
    Rule(
        "files",
        lambda c: (
            c.storage
            and c.data.kind == "folder"
            and c.data.files >= thresholds.MANY_FILES
            and c.data.sample_bytes <= thresholds.SMALL_FILE
            and {"pack": c.how_to_pack()}
        ),
        "{data.files:,} files of {data.sample_bytes:size}: listing, opening and copying them takes "
        "long",
        "{pack}: a few large files, with checksums",
        ("{storage.cold_reads_s:,.0f} files/s from the disk one after the other",),
    ),
    Rule(
        "files",
        lambda c: (
            c.data.packed
            and c.data.files >= thresholds.MANY_SHARDS
            and (mean := c.data.nbytes / c.data.files) < thresholds.SMALL_SHARD
            and {"mean": mean}
        ),
        "{data.files:,} shards of {mean:size}: each is opened and mapped on its own",
        "pack again with --shard-size 64MiB",
    ),
    Rule(
        "fetch",
        lambda c: c.storage.file_system.startswith(_SHARED),
        "the data is on {storage.file_system}, which is layered over another file system",
        "mount a volume for it (docker run -v), or copy it to a local disk",
    ),
)

DATA_RULES = (*_IMAGES, *_TABLES, *_STORAGE)
