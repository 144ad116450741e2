"""The options that all commands of `fastio train` share, and how a run is started and reported."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fastio.cli.common import check_there, clear_errors, complain, say, say_json

if TYPE_CHECKING:
    from fastio.train import Options, Result, Task


class Amp(str, Enum):
    """The dtype of autocast."""

    bf16 = "bf16"
    fp16 = "fp16"


class Parallel(str, Enum):
    """How several GPUs or processes share the work."""

    dp = "dp"
    ddp = "ddp"
    fsdp = "fsdp"


class Optimizer(str, Enum):
    """The optimizer."""

    adamw = "adamw"
    sgd = "sgd"


class Schedule(str, Enum):
    """The learning rate schedule."""

    onecycle = "onecycle"
    cosine = "cosine"
    constant = "constant"


_COURSE = "Training"
_SPEED = "Performance"
_KEPT = "Checkpoints and logging"


def _result(help: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=_COURSE, **settings)


def _speed(help: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=_SPEED, **settings)


def _kept(help: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=_KEPT, **settings)


@dataclass(frozen=True)
class Output:
    """What a command prints."""

    as_json: bool
    quiet: bool


def shared(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Data to train on: anything that a Loader reads.")
    ],
    val: Annotated[
        str | None, _result("Data to evaluate on after every epoch.", metavar="DATA")
    ] = None,
    val_split: Annotated[
        float, _result("Fraction of DATA to hold out for evaluation, for example 0.1.")
    ] = 0.0,
    epochs: Annotated[int, _result("Number of epochs.", min=1)] = 10,
    batch_size: Annotated[
        int | None, _result("Samples per batch on each process (default: set by the task).", min=1)
    ] = None,
    grad_accum: Annotated[
        int,
        _result("Number of batches whose gradients are accumulated for one optimizer step.", min=1),
    ] = 1,
    optimizer: Annotated[Optimizer, _result("The optimizer.")] = Optimizer.adamw,
    lr: Annotated[
        float | None, _result("Maximum learning rate (default: set by the task).")
    ] = None,
    weight_decay: Annotated[
        float, _result("Weight decay of matrices and convolution kernels.")
    ] = 0.01,
    schedule: Annotated[Schedule, _result("Learning rate schedule.")] = Schedule.onecycle,
    warmup: Annotated[
        float, _result("Length of the learning rate warm-up in epochs, for example 0.5.")
    ] = 1.0,
    label_smoothing: Annotated[float, _result("Label smoothing of the cross-entropy loss.")] = 0.0,
    clip_grad_norm: Annotated[
        float | None, _result("Maximum total norm of the gradients (default: no clipping).")
    ] = None,
    amp: Annotated[
        Amp | None, _result("Mixed precision; fp16 scales gradients (default: float32).")
    ] = None,
    seed: Annotated[int, _result("Seed of weights, order, augmentation and dropout.")] = 0,
    deterministic: Annotated[
        bool,
        _result("Give bit-identical results in every run on the same machine.", "--deterministic"),
    ] = False,
    early_stopping: Annotated[
        int | None,
        _result("Stop after this many evaluations without an improvement.", metavar="PATIENCE"),
    ] = None,
    val_batch_size: Annotated[
        int | None, _speed("Batch size of the evaluation (default: twice --batch-size).", min=1)
    ] = None,
    threads: Annotated[
        int, _speed("Number of threads of each loader; 0 uses all cores.", min=0)
    ] = 0,
    device: Annotated[
        str | None, _speed("Device: cpu, cuda, cuda:1, ... (default: a GPU if there is one).")
    ] = None,
    compile: Annotated[bool, _speed("Compile the model with torch.compile.", "--compile")] = False,
    channels_last: Annotated[
        bool,
        _speed(
            "Keep weights and images in channels-last memory, for faster convolutions.",
            "--channels-last",
        ),
    ] = False,
    parallel: Annotated[
        Parallel | None,
        _speed(
            "Parallelism: ddp and fsdp need torchrun, where ddp is the default; dp uses "
            "one process."
        ),
    ] = None,
    checkpoint_dir: Annotated[
        str | None, _kept("Folder for last.pt, best.pt and history.json.", metavar="DIR")
    ] = None,
    checkpoint_every: Annotated[
        int | None, _kept("Also save a checkpoint every this many steps.", metavar="STEPS", min=1)
    ] = None,
    resume: Annotated[
        bool,
        _kept("Continue exactly from last.pt of --checkpoint-dir, if it exists.", "--resume"),
    ] = False,
    log_every: Annotated[int, _kept("Number of steps between two logged points.", min=1)] = 50,
    tensorboard: Annotated[
        str | None,
        _kept(
            "Write TensorBoard event files to this folder; needs fastio\\[tensorboard].",
            metavar="DIR",
        ),
    ] = None,
    visdom: Annotated[
        str | None, _kept("Plot on this visdom server; needs fastio\\[visdom].", metavar="URL")
    ] = None,
) -> Options:
    """Returns the options of a run, made from the parameters of a command."""
    from fastio.train import Options

    given = dict(locals())
    given.pop("Options")
    plain = {n: v.value if isinstance(v, Enum) else v for n, v in given.items()}
    return Options(**plain)


def training(
    batch_size: int,
) -> Callable[[Callable[..., Task]], Callable[..., None]]:
    """Makes a command from a function (options, settings of its own ...) -> Task.

    The command has the parameters of `shared`, those of the function, `--json` and `--quiet`.

    Args:
        batch_size: the batch size if the command line does not set one.
    """

    def decorate(make: Callable[..., Task]) -> Callable[..., None]:
        own = _parameters(make)[1:]

        @functools.wraps(make)
        def command(**given: Any) -> None:
            settings = {p.name: given.pop(p.name) for p in own}
            output = Output(given.pop("as_json"), given.pop("quiet"))
            given["batch_size"] = given["batch_size"] or batch_size
            with clear_errors():
                check_there(given["data"])
                check_there(given["val"])
                options = shared(**given)
                _run(lambda: make(options, **settings), options, output)

        ends = _parameters(_output)
        first, *rest = _parameters(shared)
        command.__signature__ = inspect.Signature([first, *own, *rest, *ends])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (first, *own, *rest, *ends)}
        return command

    return decorate


def _output(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON on one line.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
) -> None:
    """Declares the parameters `--json` and `--quiet`; it is never called."""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters of a function, with annotations as objects instead of strings."""
    given = inspect.signature(function).parameters.values()
    hints = get_type_hints(function, localns=_NAMES, include_extras=True)
    return [p.replace(annotation=hints[p.name]) for p in given]


# Names in annotations that are imported for the type checker only.
_NAMES = {"Options": Any, "Task": Any}


def _run(make: Callable[[], Task], options: Options, output: Output) -> None:
    from fastio.train import fit
    from fastio.train.monitor import Monitor, Monitors

    main = os.environ.get("RANK", "0") == "0"
    monitors: list[Monitor] = []
    if main and options.tensorboard is not None:
        from fastio.train.trackers import TensorBoard

        monitors.append(TensorBoard(options.tensorboard))
    if main and options.visdom is not None:
        from fastio.train.trackers import Visdom

        monitors.append(Visdom(options.visdom))
    if not main or output.quiet:
        result = fit(make(), options, Monitors(*monitors))
    else:
        from fastio.train.progress import Bar

        with Bar(advises=not output.as_json) as bar:
            result = fit(make(), options, Monitors(bar, *monitors))
    if main:
        _tell(result, options, output)
    if result.signal:
        raise typer.Exit(128 + result.signal)


def _tell(result: Result, options: Options, output: Output) -> None:
    """Prints the result on stdout and, after an interruption, how to continue the run on stderr."""
    if output.as_json:
        say_json(result.to_dict())
    elif not output.quiet and result.best is not None:
        kept = f"; {options.checkpoint_dir}/best.pt" if options.checkpoint_dir else ""
        say(
            f"{result.reason} after step {result.steps:,}: best {result.metric} "
            f"{result.best:.4f} in epoch {result.best_epoch}{kept}"
        )
    if result.signal:
        saved = (
            "it goes on from there with the same command and --resume"
            if options.checkpoint_dir
            else "nothing is saved without --checkpoint-dir"
        )
        complain(f"interrupted after step {result.steps:,}: {saved}")
