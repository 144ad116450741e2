"""What a bench measured: plain frozen values, ready for JSON.

A run of `fastio bench` ends in one `Measured`. The diagnosis and the report are functions of it
alone, so that a file of JSON from another machine is diagnosed and drawn like a run of one's own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fastio.diagnose.facts import DataFacts, MachineFacts
from fastio.diagnose.values import from_json
from fastio.errors import MeasuredInvalid

FORMAT = 1  # of the JSON; a reader refuses others
LEAST_STEPS = 3  # of the model alone, for a rate that others are compared with

PhaseName = Literal[
    "compute",  # the model, or the emulated accelerator, on resident batches: no loader
    "loader_warm",  # the loader alone, the data in the page cache (remote: in the local cache)
    "loader_cold",  # the loader alone, nothing of the data in memory (remote: an empty cache)
    "together_warm",  # loader and model, as in training
    "together_cold",
    "baseline_loader",  # torch's DataLoader with Pillow, warm
    "baseline_together",
]
Stage = Literal["fetch", "decode", "transform", "copy", "compute"]


@dataclass(frozen=True)
class Settings:
    """How it was run.

    Attributes:
        batch_size: samples a step.
        threads: of the loader.
        transforms: as their specifications print.
        model: its name; "" where an accelerator was emulated.
        accelerator: the preset's name, or "" where a rate was given or nothing was emulated.
        accelerator_rate: samples/s of the emulated accelerator; None: a model computed.
        device: batches' device as given to the loader.
        seed: of the order and of all augmentations.
        asynchronous: the device computes beside the loop (a GPU, an emulated accelerator); False:
            the loop's own cores compute, as with a model on the CPU.
        blocking_copies: the loop waits for each copy to the device; False: copies run on a
            stream, ahead of the step that needs them.
        au_target: the least AU that MLPerf Storage asks of the accelerator, 0.0 to 1.0.
        amp: the type that the model was autocast to, "bf16" or "fp16"; "" for float32.
        compile: the model went through torch.compile.
        channels_last: weights and images lay in channels-last memory.
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
class Busy:
    """Busy seconds of each stage, summed over the threads that did it.

    Attributes:
        read_s: threads waited for bytes.
        decode_s: threads decoded.
        resample_s: threads cropped, resized and wrote rows.
        copy_s: copies to the device, on their stream.
        transform_s: transforms written in Python, which run between two batches.
        compute_s: the model (or emulated accelerator) computed.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    resample_s: float = 0.0
    copy_s: float = 0.0
    transform_s: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True)
class Phase:
    """One of the runs whose differences are the diagnosis.

    Attributes:
        name: which.
        samples: handed over in it; of a part of an epoch read cold over a network, those fetched.
        seconds: that it took, from the first batch asked for to the last step's end; starting
            threads and worker processes is left out.
        busy: what each stage did meanwhile.
        wait_s: the caller waited for a batch, Python transforms left out.
        steps: batches.
        bytes_read: from files or mapped memory.
        bytes_fetched: over the network.
        cpu_s: processor seconds of this process and its workers.
        au: accelerator utilisation as MLPerf Storage defines it, compute time / run time, 0.0
            to 1.0; None where nothing was computed.
    """

    name: PhaseName
    samples: int
    seconds: float
    busy: Busy = field(default_factory=Busy)
    wait_s: float = 0.0
    steps: int = 0
    bytes_read: int = 0
    bytes_fetched: int = 0
    cpu_s: float = 0.0
    au: float | None = None

    @property
    def samples_per_s(self) -> float:
        """Samples a second (0.0 of an empty phase)."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def wait_share(self) -> float | None:
        """The part of the time in which the caller waited for a batch, 0.0 to 1.0."""
        return self.wait_s / self.seconds if self.seconds > 0 else None

    @property
    def cores_busy(self) -> float | None:
        """Processor time / time: how many cores the process and its workers kept busy."""
        return self.cpu_s / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class Split:
    """What one epoch's seconds go to, where the loop stands: the parts add up to the epoch.

    Work that is hidden behind another stage is in none of them.

    Attributes:
        name: "warm" or "cold".
        fetch_s: waited for storage or network: what the cold run takes longer than the warm one.
        decode_s: waited for the loader's threads: reading from memory, decoding, resizing.
        transform_s: Python transforms.
        copy_s: waited for copies to the device.
        compute_s: the model computed.
    """

    name: Literal["warm", "cold"]
    fetch_s: float
    decode_s: float
    transform_s: float
    copy_s: float
    compute_s: float

    @property
    def epoch_s(self) -> float:
        """Seconds of the epoch."""
        return self.fetch_s + self.decode_s + self.transform_s + self.copy_s + self.compute_s

    def parts(self) -> dict[Stage, float]:
        """The parts by stage, in the order in which the data goes."""
        return {
            "fetch": self.fetch_s,
            "decode": self.decode_s,
            "transform": self.transform_s,
            "copy": self.copy_s,
            "compute": self.compute_s,
        }


@dataclass(frozen=True)
class Span:
    """A stage's time in one step of the timeline, in seconds from the timeline's beginning.

    Attributes:
        step: of the together run, from 0.
        stage: "fetch", "decode", "copy" are the loop's waits for them; "transform" and "compute"
            are the work itself. Spans of the stages may overlap where the device works on its own.
        start_s, end_s: the span.
        run: "warm" or "cold".
    """

    step: int
    stage: Stage
    start_s: float
    end_s: float
    run: Literal["warm", "cold"] = "warm"


@dataclass(frozen=True)
class ThreadRate:
    """A point of the loader's curve over threads, warm.

    Attributes:
        threads: of the loader.
        samples_per_s: that it handed over alone, without transforms written in Python.
    """

    threads: int
    samples_per_s: float


@dataclass(frozen=True)
class Memory:
    """Memory while loader and model ran together, in bytes.

    Attributes:
        peak_rss_bytes: resident set of this process, highest.
        available_bytes: what was left to take when the bench began.
    """

    peak_rss_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Prediction:
    """An epoch's time, as it is or after a change.

    Attributes:
        name: the change in a few words: "now, warm", "threads: 4", "packed as blocks", ...
        epoch_s: predicted (of "now": measured) seconds of an epoch.
        measured_s: seconds of an epoch that was then measured so; None: it was not.
    """

    name: str
    epoch_s: float
    measured_s: float | None = None


@dataclass(frozen=True)
class Training:
    """Epochs trained for the accuracy beside the time.

    Attributes:
        name: "fastio" or "DataLoader".
        epochs: trained.
        seconds: in all, evaluation left out.
        accuracy: top-1 after the last epoch, 0.0 to 1.0.
        loss: mean training loss of the last epoch; None: it was no finite number.
    """

    name: str
    epochs: int
    seconds: float
    accuracy: float
    loss: float | None


@dataclass(frozen=True)
class Measured:
    """All that a bench measured.

    Attributes:
        machine, dataset, settings: where, what, how.
        phases: the runs, in the order of `PhaseName`; those that were not asked for are missing.
        splits: an epoch's seconds by stage, warm, and cold where it was measured.
        timeline: spans of a few dozen steps.
        threads: the loader's curve, ascending; () where it was not measured.
        predictions: epochs as they are, then after each change, the largest gain first.
        trainings: () unless epochs were asked for.
        memory: None where it is not known.
        accelerators_fed: how many accelerators of `Settings.accelerator_rate` the loader alone,
            warm, keeps at the AU that MLPerf Storage asks for; None without an emulated one.
        notes: what a reader must know of this run, a sentence each.
        baseline: path of the folder that DataLoader read; "" without a baseline.
        packed_samples_per_s: what the loader handed over alone of a part of the data packed with
            the block codec as a trial, with the same threads; None: not tried.
    """

    machine: MachineFacts
    dataset: DataFacts
    settings: Settings
    phases: tuple[Phase, ...]
    splits: tuple[Split, ...] = ()
    timeline: tuple[Span, ...] = ()
    threads: tuple[ThreadRate, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    trainings: tuple[Training, ...] = ()
    memory: Memory | None = None
    accelerators_fed: float | None = None
    notes: tuple[str, ...] = ()
    baseline: str = ""
    packed_samples_per_s: float | None = None

    def phase(self, name: PhaseName) -> Phase | None:
        """The run of that name, None where it was not made."""
        return next((phase for phase in self.phases if phase.name == name), None)

    def split(self, name: Literal["warm", "cold"]) -> Split | None:
        """The split of that name, None where it was not made."""
        return next((split for split in self.splits if split.name == name), None)

    def epoch_s(self, phase: Phase) -> float:
        """Seconds of a whole epoch at a phase's rate (0.0 of an empty phase)."""
        return phase.seconds / phase.samples * self.dataset.rows if phase.samples else 0.0

    @property
    def ceiling(self) -> float | None:
        """Samples a second on batches that are in place: no loader makes a loop faster.

        None where that was not measured, or in too few steps to compare with.
        """
        alone = self.phase("compute")
        if alone is None or alone.steps < LEAST_STEPS:
            return None
        return alone.samples_per_s or None

    def reach(self, name: PhaseName) -> float | None:
        """The part of the ceiling that a loop with a loader comes to; None where not measured."""
        phase = self.phase(name)
        if phase is None or not phase.samples_per_s or not self.ceiling:
            return None
        return phase.samples_per_s / self.ceiling

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values that `from_dict` takes.

        Beside what was measured each phase has what follows from it: `samples_per_s`, `wait_share`,
        `cores_busy`, and `of_ceiling` where loader and model ran together.
        """
        phases = [asdict(phase) | self._derived(phase) for phase in self.phases]
        return {"format": FORMAT, **asdict(self), "phases": phases}

    def _derived(self, phase: Phase) -> dict[str, float | None]:
        together = phase.name in ("together_warm", "together_cold", "baseline_together")
        return {
            "samples_per_s": phase.samples_per_s,
            "wait_share": phase.wait_share,
            "cores_busy": phase.cores_busy,
            "of_ceiling": self.reach(phase.name) if together else None,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Measured:
        """The value that `to_dict` gave; keys that are not known are left out.

        Raises:
            MeasuredInvalid: it is none, or of another format.
        """
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            found = values.get("format") if isinstance(values, dict) else type(values).__name__
            raise MeasuredInvalid(
                f"not the JSON of a bench of format {FORMAT} (found {found!r}): run "
                "`fastio bench --json FILE` of this version"
            )
        return from_json(cls, values, "bench")
