"""Remedies in words: what several rules advise, they say alike."""

from __future__ import annotations

THREADS = "Loader(num_workers=0) uses all cores"
CACHE = (
    "keep the data on this machine: Loader(cache=FOLDER) with a folder on a local disk; `fastio "
    "cache warm` fetches all of it before the first epoch"
)
FASTER_DISK = "put the data on a faster disk, or have as much memory as data"
TRANSFORMS = (
    "replace it by one of fastio's transforms, run it on the device (Loader(device=)) or on whole "
    "batches, or apply it once, before packing"
)
COPIES_AHEAD = (
    "Loader(device=...): batches are copied from pinned memory on a stream of their own, ahead of "
    "the step"
)
SMALLER_COPIES = "copy fewer bytes: smaller crops, or uint8 (Normalize runs on the device)"


def packing(path: str | None, options: str = "") -> str:
    """Returns the command that packs the data at a path."""
    return f"`fastio pack {path or 'DATA'} PACKED{options}`, then Loader('PACKED')"


def faster_model(*, amp: bool = False, channels_last: bool = False, compiled: bool = False) -> str:
    """Returns how a model can be made faster, without what it uses already."""
    known = (
        ("autocast to bf16", amp),
        ("channels_last", channels_last),
        ("torch.compile", compiled),
        ("a larger batch", False),
    )
    ways = ", ".join(name for name, there in known if not there)
    return f"make the model faster ({ways}), or train on more accelerators"
