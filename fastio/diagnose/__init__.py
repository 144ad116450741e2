"""Diagnosis of training: what limits the throughput, what to change, and the expected gain.

    probes, bench, statistics -> facts, measured, stats -> cases -> rules -> findings -> report

- `options`: the options of doctor and bench
- `facts`, `measured`: what the probes find out; what the runs of a bench measure, also as JSON
- `imagesteps`: the transforms of each image: the user's own, or a random crop and a flip
- `loop`, `device`: the loop of all runs, and what takes its batches
- `probes/`: quick measurements of machine, storage, store and data: `fastio doctor` asks them
- `bench/`: runs of loader and model, alone and together: `fastio bench` asks them
- `costs`: the cost model: what a sample costs in each stage, and what an epoch takes then
- `cases`: what the rules ask of facts, of a bench, and of the statistics of a loader
- `rules/`: one set of rules for all three, whose `findings` come with the largest gain first
- `thresholds`: from which value on something is worth a finding
- `report/`: findings and tables in the terminal and as a page; `words`: numbers and names as text

Probes and runs measure; costs and rules are pure arithmetic on what was measured, without a clock
or a file.
"""

from __future__ import annotations

# isort: off
from fastio.diagnose.cases import expected as expected
from fastio.diagnose.costs import epoch_now as epoch_now
from fastio.diagnose.facts import Facts as Facts
from fastio.diagnose.findings import Finding as Finding
from fastio.diagnose.measured import Measured as Measured
from fastio.diagnose.options import Use as Use
from fastio.diagnose.rules import diagnose as diagnose, diagnose_stats as diagnose_stats
