"""Receivers of the events of a run: the interface, and curves in TensorBoard and Visdom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from torch import Tensor

import fastio

if TYPE_CHECKING:
    from fastio.train.run import Run


class Monitor:
    """Receives the events of a run on the main process. Each method does nothing by default.

    Tensors are on the device, and whoever looks at one waits for it: look rarely.
    """

    def begin(self, run: Run) -> None:
        """Is called when training begins or resumes."""

    def begin_epoch(self, run: Run) -> None:
        """Is called before the (remaining) steps of an epoch."""

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        """Is called after an optimizer step on `size` units of this process."""

    def point(self, run: Run, record: dict[str, Any]) -> None:
        """Is called after every `log_every` steps; see `Result.points`."""

    def begin_evaluation(self, run: Run) -> None:
        """Is called before an evaluation."""

    def evaluated(self, run: Run, size: int) -> None:
        """Is called after a batch of `size` units was evaluated."""

    def end_epoch(self, run: Run, record: dict[str, Any]) -> None:
        """Is called after an epoch; see `Result.history`."""

    def end(self, run: Run) -> None:
        """Is called when training ends, but not after an error."""


class _Curves(Monitor):
    """Passes the numbers of a run, by name, to `add`."""

    def begin(self, run: Run) -> None:
        self._before = run.loader.stats()

    def point(self, run: Run, record: dict[str, Any]) -> None:
        now = run.loader.stats()
        since = (now - self._before).to_dict()
        self._before = now
        self.add("train/loss", record["loss"], record["step"])
        self.add("train/lr", record["lr"], record["step"])
        for name, value in since.items():
            if not isinstance(value, str):
                self.add(f"loader/{name}", value, record["step"])

    def end_epoch(self, run: Run, record: dict[str, Any]) -> None:
        for part in ("train", "val"):
            for name, value in (record[part] or {}).items():
                self.add(f"epoch/{part}_{name}", value, record["step"])
        for name in ("units_per_s", "wait_share"):
            self.add(f"epoch/{name}", record[name], record["step"])

    def add(self, name: str, value: float, step: int) -> None:
        """Adds a point to a curve."""
        raise NotImplementedError


class TensorBoard(_Curves):
    """Writes event files into a folder.

    Raises:
        PackageMissing: tensorboard is not installed.
        TrainError: once a run begins, the folder cannot be written.
    """

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise fastio.PackageMissing(
                "tensorboard", "write logs for TensorBoard", "fastio[tensorboard]", error
            ) from error
        self._make, self._folder = SummaryWriter, folder

    def begin(self, run: Run) -> None:
        super().begin(run)
        # What an interrupted run wrote behind its last checkpoint is not shown.
        try:
            self._writer: Any = self._make(self._folder, purge_step=run.progress.step + 1)
        except OSError as error:
            raise fastio.TrainError(
                f"tensorboard={self._folder} cannot be written ({error.strerror}): choose another "
                "folder"
            ) from error

    def add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def end_epoch(self, run: Run, record: dict[str, Any]) -> None:
        super().end_epoch(run, record)
        self._writer.flush()

    def end(self, run: Run) -> None:
        self._writer.close()


class Visdom(_Curves):
    """Draws plots on a visdom server, one window per curve.

    Raises:
        PackageMissing: visdom is not installed.
        TrainError: the server does not answer.
    """

    def __init__(self, url: str) -> None:
        try:
            import visdom
        except ImportError as error:
            raise fastio.PackageMissing(
                "visdom", "draw on a visdom server", "fastio[visdom]", error
            ) from error
        parts = urlsplit(url if "//" in url else f"//{url}")
        server = f"{parts.scheme or 'http'}://{parts.hostname or 'localhost'}"
        # The incoming socket is for events of the windows, which are not used.
        self._server = visdom.Visdom(
            server=server, port=parts.port or 8097, use_incoming_socket=False
        )
        if not self._server.check_connection(timeout_seconds=5):
            raise fastio.TrainError(
                f"no Visdom server answers at {url}: start one with python -m visdom.server"
            )

    def add(self, name: str, value: float, step: int) -> None:
        options = {"title": name, "xlabel": "step"}
        self._server.line([value], [step], win=name, update="append", opts=options)
