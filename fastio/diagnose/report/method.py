"""How a bench measures, in words: what each run tells."""

from __future__ import annotations

from fastio.diagnose.measured import Measured, PhaseName
from fastio.diagnose.report import words
from fastio.diagnose.report.tables import RUN_NAMES

METHOD = (
    "The same work is timed with parts of it left out; the differences show which stage training "
    "waits for and which stages overlap (after DS-Analyzer: Mohan et al., Analyzing and Mitigating "
    "Data Stalls in DNN Training, VLDB 2021). No time includes the start of threads and worker "
    "processes. The time of an epoch is the number of its samples divided by the measured rate."
)
_RUNS: dict[PhaseName, str] = {
    "compute": "the model, or the emulated accelerator, on batches that are ready: an upper limit "
    "for any loader.",
    "loader_warm": "the loader without a model, all data in memory: reading, decoding, resizing.",
    "loader_cold": "the loader without a model, no data in memory: the additional time is that of "
    "the disk or the network.",
    "together_warm": "loader and model as in training, all data in memory.",
    "together_cold": "loader and model as in training, no data in memory.",
    "baseline_loader": "torch's DataLoader with Pillow and the same transforms, with one worker "
    "process a core, all data in memory, epochs without a pause. Batches for a GPU are copied from "
    "pinned memory as uint8, without blocking, and normalised there.",
    "baseline_together": "the same with the model. Its worker processes are not profiled: all time "
    "without the model counts as waiting.",
}


def method(measured: Measured) -> tuple[str, ...]:
    """Returns one line about each run that was made, and one about accelerator utilisation."""
    lines = [words.sentence(f"{RUN_NAMES[run.name]}: {_RUNS[run.name]}") for run in measured.phases]
    if any(run.au is not None for run in measured.phases):
        lines.append(
            "AU, accelerator utilisation: compute time / run time, as MLPerf Storage defines it."
        )
    return tuple(lines)
