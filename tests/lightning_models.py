"""Models, trainers and data of the tests of Lightning; importing them takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

import fastio.integrations.lightning
import fastio.integrations.pytorch_lightning
from tests.trainers import BATCH, ROWS

__all__ = [
    "CSVLogger",
    "Classifier",
    "EarlyStopping",
    "ModelCheckpoint",
    "OneCycle",
    "Recorder",
    "data",
    "fastio",
    "lightning",
    "pytorch_lightning",
    "trainer",
]


class Recorder(lightning.LightningModule):
    """A tiny model that notes the rows of its steps."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained: list[list[int]] = []
        self.evaluated: list[list[int]] = []
        self.fail_at = fail_at

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if len(self.trained) == self.fail_at:
            raise RuntimeError("stopped here")
        self.trained.append(batch["x"].int().tolist())
        loss: torch.Tensor = self.layer(batch["x"][:, None] / ROWS).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        self.evaluated.append(batch["x"].int().tolist())
        self.log("constant", torch.tensor(1.0), batch_size=1)

    test_step = validation_step

    def predict_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> torch.Tensor:
        self.evaluated.append(batch["x"].int().tolist())
        return torch.zeros(())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


class OneCycle(Recorder):
    """A model that asks for the number of steps before the checkpoint's loops are read."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def trainer(*callbacks: Any, **options: Any) -> lightning.Trainer:
    defaults: dict[str, Any] = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
        "callbacks": list(callbacks),
    }
    return lightning.Trainer(**{**defaults, **options})


def data(
    packed: Path, val: bool = False, **options: Any
) -> fastio.integrations.lightning.DataModule:
    split = {"dataset": packed, "batch_size": BATCH, "seed": 0}
    return fastio.integrations.lightning.DataModule(
        train={**split, "shuffle": True, **options}, val=split if val else None
    )


class Classifier(lightning.LightningModule):
    """A linear model of images of 32 pixels in two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)
