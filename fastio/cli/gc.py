"""fastio gc: delete old versions of a dataset, and files that no version needs."""

from __future__ import annotations

from fastio.cli.command import Given, Output, Written, command
from fastio.pack.gc import gc as collect
from fastio.runtime.sizes import counted, size_text


@command(collect, written={"path": Written(metavar="DIR|URL"), "keep": Written(least=1)})
def gc(given: Given) -> Output:
    """Delete old versions of a dataset, and files that no version needs."""
    found = collect(**given)
    versions = f"{counted(len(found.versions), 'versions')}, " if found.versions else ""
    files = f"{counted(found.files, 'files')}, {size_text(found.bytes)}"
    text = [f"{given['path']}: deleted {versions}{files}"]
    if found.unfinished:
        text.append(
            "kept the files of an unfinished pack: finish it with `fastio pack ... --resume` (an "
            "append with --append --resume), or discard it with `fastio gc ... --unfinished`"
        )
    return Output(vars(found), text)
