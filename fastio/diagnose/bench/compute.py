"""What takes the batches of a bench, as its options say: a model, or an emulated accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import torch

from fastio.device import resolve_device
from fastio.diagnose.bench.device import CpuModel, CudaModel, Device, EmulatedAccelerator, TrainStep
from fastio.diagnose.bench.models import load_step, train_options
from fastio.diagnose.bench.options import Options
from fastio.diagnose.bench.presets import PRESETS, Preset
from fastio.diagnose.bench.subject import Subject
from fastio.errors import BenchError
from fastio.train.parallel import Place
from fastio.train.run import backends

_WARM_UP_STEPS = 4


def model_device(options: Options) -> torch.device:
    """Returns the device of the model: the one asked for, else the GPU if there is one.

    Raises:
        BenchError: torch finds no such device.
    """
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = resolve_device(name)
    except RuntimeError as error:
        raise BenchError(f"there is no device {name!r} to compute on: {error}") from error
    assert device is not None
    return device


@dataclass(frozen=True)
class Compute:
    """Makes devices with the same settings.

    Attributes:
        options: what was asked for.
        preset: the accelerator that is emulated; None: another one, or a model.
        rate: samples/s of the emulated accelerator; None: a model computes.
        device: of the model; None: none.
        step: of the model; None: none.
    """

    options: Options
    preset: Preset | None = None
    rate: float | None = None
    device: torch.device | None = None
    step: TrainStep | None = None

    @classmethod
    def of(cls, options: Options, subject: Subject) -> tuple[Compute, Subject]:
        """Returns the compute and the subject, with the transforms and layout that the model needs.

        Raises:
            BenchError: there is no such model, or no such device.
        """
        if options.model is None:
            preset = options.emulated
            if preset is None and options.rate is None:
                images = bool(subject.schema.image_fields)
                preset = PRESETS["resnet50-h100" if images else "dlrm-b200"]
            rate = options.rate if preset is None or options.rate is not None else preset.rate
            return cls(options, preset, rate), subject
        device = model_device(options)
        delivered = None if options.blocking_copies else device
        subject = replace(subject, normalized=True, device=delivered)
        return cls(options, device=device, step=load_step(subject, device)), subject

    def warm_up(self, batches: list[tuple[Any, int]]) -> None:
        """Runs steps that are not measured, in which code is compiled and kernels are chosen.

        Args:
            batches: (batch, samples), on the device.
        """
        if self.step is None:
            return
        more = self.on_gpu or self.options.compile
        device = self.new(resident=True)
        for batch, samples in islice(cycle(batches), _WARM_UP_STEPS if more else 1):
            device.step(batch, samples)
        device.wait()

    @contextmanager
    def backends(self) -> Iterator[None]:
        """Sets PyTorch's backends for speed, as fastio.train does, while a model computes."""
        if self.device is None:
            yield
            return
        with backends(train_options(self.options, self.device), Place(self.device)):
            yield

    @property
    def on_gpu(self) -> bool:
        """Whether a model computes on a CUDA device."""
        return self.device is not None and self.device.type == "cuda"

    @property
    def asynchronous(self) -> bool:
        """Whether the device computes in parallel with the loop."""
        return self.rate is not None or self.on_gpu

    @property
    def au_target(self) -> float:
        """The accelerator utilisation that MLPerf Storage requires."""
        return 0.9 if self.preset is None else self.preset.au

    def new(self, *, resident: bool = False, blocking: bool | None = None) -> Device:
        """Returns a new device.

        Args:
            resident: its batches are on it already.
            blocking: whether the loop waits for copies; None: as the options say.
        """
        waits = self.options.blocking_copies if blocking is None else blocking
        if self.rate is not None:
            return EmulatedAccelerator(self.rate, None if resident else self.options.bus, waits)
        assert self.step is not None
        assert self.device is not None
        if self.on_gpu:
            return CudaModel(self.step, self.device, waits and not resident)
        return CpuModel(self.step)
