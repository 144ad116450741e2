"""fastio train: complete training loops to run, read and copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from fastio.cli.command import Given, Output, Written, command
from fastio.cli.common import check_there
from fastio.cli.parsing import parse_names
from fastio.train.options import ImageSettings, Options, TabularSettings, TextSettings

if TYPE_CHECKING:
    from fastio.train import Result
    from fastio.train.monitor import Monitor

train = typer.Typer(
    help="Train a model on images, text or tables.",
    epilog="Under torchrun (torchrun --nproc-per-node 8 -m fastio train ...), every process trains "
    "on its part of each batch.",
    no_args_is_help=True,
)

_WRITTEN = {
    "val": Written(metavar="DATA"),
    "threads": Written(least=0),
    "early_stopping": Written(metavar="PATIENCE"),
    "checkpoint_every": Written(metavar="STEPS"),
    "tensorboard": Written(metavar="DIR"),
    "visdom": Written(metavar="URL"),
    "label": Written(metavar="FIELD"),
    "ema": Written(metavar="DECAY"),
    "mixup": Written(metavar="ALPHA"),
    "cutmix": Written(metavar="ALPHA"),
    "dense": Written(metavar="A,B,...", parse=parse_names),
    "sparse": Written(metavar="A,B,...", parse=parse_names),
    "quiet": Written(text="Print no progress.", short="-q"),
}


def _training(name: str, settings: type[Any], batch_size: int, text: str) -> None:
    """Adds a command that trains the task of some settings.

    Args:
        name: The name of the command.
        settings: The class of the settings.
        batch_size: The default batch size.
        text: The help text.
    """

    def run(own: Given, given: Given, as_json: bool = False, quiet: bool = False) -> Output:
        check_there(given["data"])
        check_there(given["val"])
        return _fit(settings(**own), Options(**given), not quiet, not as_json)

    run.__name__, run.__doc__ = name, text
    defaults = {"batch_size": batch_size}
    train.command()(command(settings, Options, written=_WRITTEN, defaults=defaults)(run))


_training("image", ImageSettings, 64, "Classify images.")
_training(
    "text",
    TextSettings,
    32,
    "Classify text, or train a language model, on tokens that `fastio pack --tokenizer` made.",
)
_training(
    "tabular",
    TabularSettings,
    16_384,
    "Train on rows of numbers and ids from a packed table or from table files.",
)


def _fit(settings: Any, options: Options, bar: bool, advises: bool) -> Output:
    """Trains a task, and returns the result and, after an interruption, how to continue the run.

    Only the main process of several shows and prints anything.
    """
    from fastio.train import fit
    from fastio.train.kinds import task_of
    from fastio.train.progress import Bar

    main = os.environ.get("RANK", "0") == "0"
    monitors = _trackers(options) if main else []
    if main and bar:
        with Bar(advises=advises) as shown:
            result = fit(task_of(settings, options), options, shown, *monitors)
    else:
        result = fit(task_of(settings, options), options, *monitors)
    code = 128 + result.signal if result.signal else 0
    if not main:
        raise typer.Exit(code)
    return Output(result.to_dict(), _text(result, options), _problems(result, options), code)


def _trackers(options: Options) -> list[Monitor]:
    """Returns the trackers that the options ask for."""
    from fastio.train.monitor import TensorBoard, Visdom

    kinds: Mapping[str, Callable[[str], Monitor]] = {"tensorboard": TensorBoard, "visdom": Visdom}
    where = {name: getattr(options, name) for name in kinds}
    return [kinds[name](place) for name, place in where.items() if place is not None]


def _text(result: Result, options: Options) -> list[str]:
    if result.best is None:
        return []
    kept = f"; {options.checkpoint_dir}/best.pt" if options.checkpoint_dir else ""
    return [
        f"{result.reason} after step {result.steps:,}: best {result.metric} "
        f"{result.best:.4f} in epoch {result.best_epoch}{kept}"
    ]


def _problems(result: Result, options: Options) -> list[str]:
    if not result.signal:
        return []
    saved = (
        "continue with the same command and --resume"
        if options.checkpoint_dir
        else "nothing is saved without --checkpoint-dir"
    )
    return [f"interrupted after step {result.steps:,}: {saved}"]
