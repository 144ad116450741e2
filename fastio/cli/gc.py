"""fastio gc: delete what no kept version of a dataset needs."""

from __future__ import annotations

from fastio.cli.command import Given, Output, Written, command
from fastio.cli.common import counted
from fastio.pack.gc import gc as collect
from fastio.runtime.sizes import size_text


@command(collect, written={"path": Written(metavar="DIR|URL"), "keep": Written(least=1)})
def gc(given: Given) -> Output:
    """Delete old versions of a dataset, and files that no version needs."""
    found = collect(**given)
    versions = f" of {counted(len(found.versions), 'version')}" if found.versions else ""
    text = [f"{given['path']}: {counted(found.files, 'file')}{versions} deleted, "]
    text[0] += size_text(found.bytes)
    if found.unfinished:
        text.append(
            "an unfinished append was left alone: finish it with `fastio pack ... --append "
            "--resume`, or discard it with --unfinished"
        )
    return Output(vars(found), text)
