"""How a bench measures, in words: what each run tells."""

from __future__ import annotations

from fastio.diagnose.measured import Measured, PhaseName
from fastio.diagnose.report import words
from fastio.diagnose.report.tables import RUN_NAMES

METHOD = (
    "The same work is timed with parts of it left out; the differences tell what is waited for "
    "and what is hidden behind something else (after DS-Analyzer: Mohan et al., Analyzing and "
    "Mitigating Data Stalls in DNN Training, VLDB 2021). Starting threads and worker processes is "
    "left out of all times, and an epoch's time is that of its samples at the rate of the run."
)
_RUNS: dict[PhaseName, str] = {
    "compute": "the model, or the emulated accelerator, on batches that are in place: what no "
    "loader can be faster than.",
    "loader_warm": "the loader without a model, its data in memory: reading, decoding, resizing.",
    "loader_cold": "the loader without a model, none of its data in memory: what it takes longer "
    "is the disk or the network.",
    "together_warm": "loader and model as in training: what the loop waits in it is not hidden.",
    "together_cold": "as in training, none of the data in memory.",
    "baseline_loader": "torch's DataLoader with Pillow, the same transforms, as many workers as "
    "cores, its data in memory, one epoch after the other; a GPU is given bytes from pinned "
    "memory, which the loop does not wait for, and normalises them.",
    "baseline_together": "the same with the model. Its workers are not looked into: what is not "
    "the model's time is waiting.",
}


def method(measured: Measured) -> tuple[str, ...]:
    """A line about every run that was made, and about accelerator utilisation."""
    lines = [words.sentence(f"{RUN_NAMES[run.name]}: {_RUNS[run.name]}") for run in measured.phases]
    if any(run.au is not None for run in measured.phases):
        lines.append(
            "AU, accelerator utilisation: compute time / run time, as MLPerf Storage defines it."
        )
    return tuple(lines)
