"""The results of a bench, as frozen JSON-ready values.

A run of `fastio bench` ends in one `Measured`. The diagnosis and the report are functions of it
alone, so that a file of JSON from another machine is diagnosed and drawn like a run of one's own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from fastio.diagnose.facts import DataFacts, MachineFacts, StepFacts, StepKind, spent
from fastio.errors import MeasuredInvalid
from fastio.stats import Stats

FORMAT = 3  # version of the JSON format; a reader refuses others
LEAST_STEPS = 3  # of the model alone; fewer give no rate to compare others with

PhaseName = Literal[
    "compute",  # the model, or the emulated accelerator, on resident batches: no loader
    "loader_warm",  # the loader alone, the data in the page cache (remote: in the local cache)
    "loader_cold",  # the loader alone, nothing of the data in memory (remote: an empty cache)
    "together_warm",  # loader and model, as in training
    "together_cold",
    "baseline_loader",  # torch's DataLoader with Pillow, warm
    "baseline_together",
]
TOGETHER: tuple[PhaseName, ...] = ("together_warm", "together_cold", "baseline_together")
Stage = Literal["fetch", "decode", "augment", "transform", "copy", "compute"]
STAGES: tuple[Stage, ...] = get_args(Stage)  # in the order of the data flow
Part = Stage | Literal["wait"]  # of an epoch that is not told apart further


@dataclass(frozen=True)
class Settings:
    """The settings of a bench.

    Attributes:
        batch_size: samples per step.
        threads: threads of the loader.
        transforms: transforms, as text.
        model: name of the model; "" if an accelerator was emulated.
        accelerator: name of the preset; "" if a rate was given or nothing was emulated.
        accelerator_rate: samples per second of the emulated accelerator; None with a model.
        device: device of the batches, as given to the loader.
        seed: seed of the order and of all augmentations.
        asynchronous: whether the device computes in parallel with the loop (a GPU or an emulated
            accelerator); False for a model on the CPU, which uses the loop's own cores.
        blocking_copies: whether the loop waits for each copy to the device; False if copies run
            on a stream, ahead of the step that needs them.
        au_target: accelerator utilisation that MLPerf Storage requires, 0.0 to 1.0.
        amp: type of autocast, "bf16" or "fp16"; "" for float32.
        compile: whether the model was compiled with torch.compile.
        channels_last: whether weights and images were in channels-last memory.
    """

    batch_size: int
    threads: int
    transforms: tuple[str, ...] = ()
    model: str = ""
    accelerator: str = ""
    accelerator_rate: float | None = None
    device: str = "cpu"
    seed: int = 0
    asynchronous: bool = True
    blocking_copies: bool = False
    au_target: float = 0.9
    amp: str = ""
    compile: bool = False
    channels_last: bool = False


@dataclass(frozen=True)
class Phase:
    """One of the runs of a bench. The diagnosis compares their rates.

    Attributes:
        name: name of the phase.
        samples: samples that were delivered; for a part of an epoch that is read cold over a
            network, those that were fetched.
        seconds: duration from the request of the first batch to the end of the last step, without
            the start of threads and worker processes.
        stats: what the loader counted. Here `copy_s` includes all copies to the device,
            `transform_s` is the time of Python transforms that run between two batches, and
            `wait_s` does not include that time.
        compute_s: seconds in which the model (or emulated accelerator) computed.
        steps: number of batches.
        cpu_s: processor seconds of this process and its workers.
        au: accelerator utilisation as MLPerf Storage defines it, compute time / run time, 0.0
            to 1.0; None if nothing was computed.
    """

    name: PhaseName
    samples: int
    seconds: float
    stats: Stats = field(default_factory=Stats)
    compute_s: float = 0.0
    steps: int = 0
    cpu_s: float = 0.0
    au: float | None = None

    @property
    def samples_per_s(self) -> float:
        """Samples per second; 0.0 for an empty phase."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def wait_share(self) -> float | None:
        """The share of the time in which the caller waited for a batch, 0.0 to 1.0."""
        return self.stats.wait_s / self.seconds if self.seconds > 0 else None

    @property
    def cores_busy(self) -> float | None:
        """The number of cores that the process and its workers kept busy on average."""
        return self.cpu_s / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class Epoch:
    """The seconds of one epoch by stage.

    Work that is hidden behind another stage is in none of them.

    Attributes:
        name: "warm", "cold" or "DataLoader".
        epoch_s: seconds of the epoch.
        stages: seconds of each stage, which add up to the epoch. "fetch": waiting for storage or
            network, which is what the cold run takes longer than the warm one. "decode": waiting
            for the loader's threads, which read from memory, decode and resize. "augment": the
            part of waiting for these threads that corresponds to the share of operations on pixels
            in their work. "transform": Python transforms. "copy": waiting for copies to the
            device. "compute": the model. The time of waiting for DataLoader is divided in the
            ratio of the steps of one worker process.
    """

    name: Literal["warm", "cold", "DataLoader"]
    epoch_s: float
    stages: dict[Stage, float] = field(default_factory=dict)

    @property
    def run(self) -> PhaseName:
        """The name of the run that it was measured in."""
        runs: dict[str, PhaseName] = {"warm": "together_warm", "cold": "together_cold"}
        return runs.get(self.name, "baseline_together")

    @property
    def wait_s(self) -> float | None:
        """The seconds in which the model did not compute; None if unknown."""
        return self.epoch_s - self.stages["compute"] if "compute" in self.stages else None

    @property
    def wait_share(self) -> float:
        """The share of the epoch in which the model did not compute, 0.0 to 1.0."""
        return (self.wait_s or 0.0) / self.epoch_s if self.epoch_s > 0 else 0.0

    def parts(self) -> list[tuple[Part, float]]:
        """Returns the stages and their seconds, which add up to the epoch, without empty stages."""
        found: list[tuple[Part, float]] = [(s, spent) for s, spent in self.stages.items() if spent]
        rest = self.epoch_s - sum(spent for _, spent in found)
        return [("wait", rest), *found] if rest > 1e-6 * self.epoch_s else found


@dataclass(frozen=True)
class Span:
    """The time of one stage in one step, in seconds from the beginning of the timeline.

    Attributes:
        step: number of the step, from 0.
        stage: "fetch", "decode", "copy" are the loop's waits for them; "transform" and "compute"
            are the work itself. Spans of the stages may overlap where the device works on its own.
        start_s, end_s: begin and end of the span.
        run: "warm" or "cold".
    """

    step: int
    stage: Stage
    start_s: float
    end_s: float
    run: Literal["warm", "cold"] = "warm"


@dataclass(frozen=True)
class ThreadRate:
    """The warm rate of the loader with a number of threads.

    Attributes:
        threads: number of threads of the loader.
        samples_per_s: rate of the loader alone, without Python transforms.
    """

    threads: int
    samples_per_s: float


@dataclass(frozen=True)
class Memory:
    """Memory use while loader and model ran together, in bytes.

    Attributes:
        peak_rss_bytes: largest resident set of this process.
        available_bytes: available memory when the bench began.
    """

    peak_rss_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Prediction:
    """The predicted time of an epoch, now or after a change.

    Attributes:
        name: the change in a few words: "now, warm", "threads: 4", "packed as blocks", ...
        epoch_s: predicted seconds of an epoch; measured ones for "now".
        measured_s: seconds of an epoch that was measured with the change; None if it was not.
    """

    name: str
    epoch_s: float
    measured_s: float | None = None

    @property
    def is_now(self) -> bool:
        """Whether it is the epoch as it is now."""
        return self.name.split(",")[0] == "now"


@dataclass(frozen=True)
class Rung:
    """One rung of a ladder: everything of the rungs before it, and one change more.

    Attributes:
        name: the change in a few words.
        epoch_s: seconds of an epoch; None: this machine cannot train it.
        accuracy: top-1 after training, 0.0 to 1.0; None: likewise.
        why_not: why it cannot; "" where it can.
    """

    name: str
    epoch_s: float | None = None
    accuracy: float | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Training:
    """The time and the accuracy of a training.

    Attributes:
        name: "fastio" or "DataLoader".
        epochs: number of epochs.
        seconds: duration without evaluation.
        accuracy: top-1 after the last epoch, 0.0 to 1.0.
        loss: mean training loss of the last epoch; None if it was not finite.
    """

    name: str
    epochs: int
    seconds: float
    accuracy: float
    loss: float | None


@dataclass(frozen=True)
class Measured:
    """Everything that a bench measured.

    Attributes:
        machine, dataset, settings: facts of the machine and the data, and the settings.
        phases: the runs, in the order of `PhaseName`; those that were not requested are missing.
        epochs: seconds of an epoch by stage, warm, and cold if it was measured.
        timeline: spans of a few dozen steps.
        threads: rates by number of threads, ascending; () if not measured.
        predictions: epochs now, then after each change, the largest gain first.
        trainings: trainings for accuracy; () unless epochs were requested.
        memory: memory use; None if unknown.
        accelerators_fed: number of accelerators of `Settings.accelerator_rate` that the loader
            alone, warm, keeps at the required utilisation; None without an emulated one.
        notes: remarks on this run, one sentence each.
        baseline: path of the folder that DataLoader reads; "" without a baseline.
        packed_samples_per_s: rate of the loader alone on a part of the data that was packed with
            the block codec as a trial, with the same threads; None if not tried.
        worker_steps: how long a worker of DataLoader takes for each step of a sample; () without a
            baseline.
    """

    machine: MachineFacts
    dataset: DataFacts
    settings: Settings
    phases: tuple[Phase, ...]
    epochs: tuple[Epoch, ...] = ()
    timeline: tuple[Span, ...] = ()
    threads: tuple[ThreadRate, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    trainings: tuple[Training, ...] = ()
    memory: Memory | None = None
    accelerators_fed: float | None = None
    notes: tuple[str, ...] = ()
    baseline: str = ""
    packed_samples_per_s: float | None = None
    worker_steps: tuple[StepFacts, ...] = ()

    def phase(self, name: PhaseName) -> Phase | None:
        """Returns the run of that name, or None if it was not made."""
        return next((phase for phase in self.phases if phase.name == name), None)

    def epoch(self, name: Literal["warm", "cold"]) -> Epoch | None:
        """Returns the epoch of that name, or None if it was not measured."""
        return next((epoch for epoch in self.epochs if epoch.name == name), None)

    def all_epochs(self) -> list[Epoch]:
        """Returns the epochs that take any time, DataLoader's last."""
        found = [epoch for epoch in self.epochs if epoch.epoch_s > 0]
        baseline = self.phase("baseline_together")
        if baseline is not None and baseline.samples and baseline.seconds > 0:
            compute_s = baseline.compute_s / baseline.samples * self.dataset.rows
            epoch_s = self.epoch_s(baseline)
            stages = self._worker_stages(max(0.0, epoch_s - compute_s))
            stages |= {"compute": compute_s} if compute_s else {}
            found.append(Epoch("DataLoader", epoch_s, stages))
        return found

    def _worker_stages(self, wait_s: float) -> dict[Stage, float]:
        """Returns the time of waiting for DataLoader by stage, in the ratio of a worker's steps."""
        kinds: dict[Stage, tuple[StepKind, ...]] = {
            "decode": ("decode", "crop", "convert"),
            "augment": ("augment",),
            "transform": ("python",),
        }
        whole_s = spent(self.worker_steps)
        parts = {stage: spent(self.worker_steps, *names) for stage, names in kinds.items()}
        return {stage: wait_s * part / whole_s for stage, part in parts.items() if part}

    def epoch_s(self, phase: Phase) -> float:
        """Returns the seconds of a whole epoch at a phase's rate; 0.0 for an empty phase."""
        return phase.seconds / phase.samples * self.dataset.rows if phase.samples else 0.0

    @property
    def ceiling(self) -> float | None:
        """Samples per second of the model on resident batches, which no loader can exceed.

        None where that was not measured, or in too few steps to compare with.
        """
        alone = self.phase("compute")
        if alone is None or alone.steps < LEAST_STEPS:
            return None
        return alone.samples_per_s or None

    def reach(self, name: PhaseName) -> float | None:
        """Returns a phase's rate relative to the ceiling, or None if it was not measured."""
        phase = self.phase(name)
        if phase is None or not phase.samples_per_s or not self.ceiling:
            return None
        return phase.samples_per_s / self.ceiling

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values that `from_dict` accepts.

        Beside what was measured each phase has what follows from it: `samples_per_s`, `wait_share`,
        `cores_busy`, and `of_ceiling` where loader and model ran together.
        """
        phases = [asdict(phase) | self._derived(phase) for phase in self.phases]
        return {"format": FORMAT, **asdict(self), "phases": phases}

    def _derived(self, phase: Phase) -> dict[str, float | None]:
        return {
            "samples_per_s": phase.samples_per_s,
            "wait_share": phase.wait_share,
            "cores_busy": phase.cores_busy,
            "of_ceiling": self.reach(phase.name) if phase.name in TOGETHER else None,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Measured:
        """Returns the value that `to_dict` converted. Unknown keys are ignored.

        Raises:
            MeasuredInvalid: it is none, or of another format.
        """
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            found = values.get("format") if isinstance(values, dict) else type(values).__name__
            raise MeasuredInvalid(
                f"not the JSON of a bench of format {FORMAT} (found {found!r}): run `fastio "
                "bench --json FILE` again with this version"
            )
        return from_json(cls, values, "bench")


# --- From JSON ------------------------------------------------------------------------------------

_T = TypeVar("_T")


def from_json(kind: type[_T], values: Any, where: str) -> _T:
    """Returns a dataclass made of JSON values. Unknown keys are ignored.

    Args:
        kind: the dataclass.
        values: as `json.load` gave them.
        where: names it in errors.

    Raises:
        MeasuredInvalid: something is missing or of another type.
    """
    try:
        # Validates JSON text, because pydantic's strict mode takes a list for a tuple only from
        # JSON.
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{n}]" if isinstance(n, int) else f".{n}" for n in first["loc"])
        got = "" if first["type"] == "missing" else f", got {first['input']!r}"
        raise MeasuredInvalid(f"{where}{place}: {first['msg']}{got}") from error
