"""What a machine and a dataset make one wait for, what to change, and what that would bring.

    use -> probes (machine, settings, gpu, data, storage, cold, images, tables, remote) -> facts
        -> rules -> findings, by gain

Probes measure and return facts; they are bounded in time and bytes and only read. Rules are
functions of facts alone. What a probe cannot find out is None, and a note says why.

- `facts`, `use`: what is found out; how the user loads and trains
- `attempt`: probes that may fail
- `rates`: samples a second of loaders, and of a part of the data packed for a try
- `pipeline`: stages whose slowest decides, before and after a change
- `examine`: all probes in their order
- `rules/`: one file a family; `live` are those of a running loader's stats
"""

from __future__ import annotations

from fastio.doctor.examine import examine
from fastio.doctor.facts import Facts
from fastio.doctor.pipeline import Pipeline, pipeline_of
from fastio.doctor.rules import diagnose, diagnose_stats
from fastio.doctor.use import Use

__all__ = ["Facts", "Pipeline", "Use", "diagnose", "diagnose_stats", "examine", "pipeline_of"]
