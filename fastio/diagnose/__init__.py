"""Diagnosis of training: what limits the throughput, what to change, and the expected gain.

    probes, bench -> facts, measured -> costs -> rules -> findings -> report

- `facts`, `use`: what the probes find out; how the user loads and trains
- `measured`, `values`: what the runs of a bench measure; JSON to values
- `imagesteps`: the transforms of each image: the user's own, or a random crop and a flip
- `loop`, `device`: the loop of all runs, and what takes its batches
- `probes/`: quick measurements of machine, storage, store and data: `fastio doctor` asks them
- `bench/`: runs of loader and model, alone and together: `fastio bench` asks them
- `costs`: the cost model: what a sample costs in each stage, and what an epoch takes then
- `rules/`: from facts or measurements to findings, the largest gain first
- `report/`: findings and tables in the terminal and as a page

Probes and runs measure; costs and rules are pure arithmetic on what was measured, without a clock
or a file.
"""

from __future__ import annotations

from fastio.diagnose.costs import expected
from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import Finding
from fastio.diagnose.measured import Measured
from fastio.diagnose.options import Use
from fastio.diagnose.rules import diagnose, diagnose_stats
from fastio.diagnose.rules.runs import epoch_now

__all__ = [
    "Facts",
    "Finding",
    "Measured",
    "Use",
    "diagnose",
    "diagnose_stats",
    "epoch_now",
    "expected",
]
