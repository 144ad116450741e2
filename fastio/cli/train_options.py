"""What the commands of `fastio train` have in common: options, monitors, the end."""

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
    """Types that autocast computes in."""

    bf16 = "bf16"
    fp16 = "fp16"


class Parallel(str, Enum):
    """How several GPUs or processes share the work."""

    dp = "dp"
    ddp = "ddp"
    fsdp = "fsdp"


class Optimizer(str, Enum):
    """Optimizers."""

    adamw = "adamw"
    sgd = "sgd"


class Schedule(str, Enum):
    """How the learning rate goes."""

    onecycle = "onecycle"
    cosine = "cosine"
    constant = "constant"


_COURSE = "What changes the result"
_SPEED = "What changes speed"
_KEPT = "What is kept and told"


def _result(help: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=_COURSE, **settings)


def _speed(help: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=_SPEED, **settings)


def _kept(help: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=_KEPT, **settings)


@dataclass(frozen=True)
class Output:
    """What a command says."""

    as_json: bool
    quiet: bool


def shared(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="What to train on: whatever a Loader takes.")
    ],
    val: Annotated[
        str | None, _result("Data to evaluate on after every epoch.", metavar="DATA")
    ] = None,
    val_split: Annotated[
        float, _result("Hold out this part of DATA to evaluate on, as in 0.1.")
    ] = 0.0,
    epochs: Annotated[int, _result("Passes over the data.", min=1)] = 10,
    batch_size: Annotated[
        int | None, _result("Samples of a batch on each process; the task's by default.", min=1)
    ] = None,
    grad_accum: Annotated[
        int, _result("Batches whose gradients make one step of the optimizer.", min=1)
    ] = 1,
    optimizer: Annotated[Optimizer, _result("The optimizer.")] = Optimizer.adamw,
    lr: Annotated[float | None, _result("Highest learning rate; the task's by default.")] = None,
    weight_decay: Annotated[float, _result("Of matrices and kernels.")] = 0.01,
    schedule: Annotated[Schedule, _result("How the learning rate goes.")] = Schedule.onecycle,
    warmup: Annotated[float, _result("Epochs in which it rises, as in 0.5.")] = 1.0,
    label_smoothing: Annotated[float, _result("Of the cross-entropy.")] = 0.0,
    clip_grad_norm: Annotated[
        float | None, _result("Highest norm of all gradients together.")
    ] = None,
    amp: Annotated[
        Amp | None, _result("Mixed precision; fp16 with scaled gradients. Float32 by default.")
    ] = None,
    seed: Annotated[int, _result("Of weights, order, augmentation and dropout.")] = 0,
    deterministic: Annotated[
        bool, _result("The same bits in every run on the same machine.", "--deterministic")
    ] = False,
    early_stopping: Annotated[
        int | None,
        _result("End after as many evaluations without a better metric.", metavar="PATIENCE"),
    ] = None,
    val_batch_size: Annotated[
        int | None, _speed("Of the evaluation; twice --batch-size by default.", min=1)
    ] = None,
    threads: Annotated[int, _speed("Of each loader; 0: all cores.", min=0)] = 0,
    device: Annotated[
        str | None, _speed("cpu, cuda, cuda:1, ...; a GPU by default where there is one.")
    ] = None,
    compile: Annotated[bool, _speed("Compile the model with torch.compile.", "--compile")] = False,
    channels_last: Annotated[
        bool,
        _speed(
            "Weights and images in channels-last memory: faster convolutions.", "--channels-last"
        ),
    ] = False,
    parallel: Annotated[
        Parallel | None,
        _speed("ddp and fsdp: start by torchrun, ddp being its default; dp: one process."),
    ] = None,
    checkpoint_dir: Annotated[
        str | None, _kept("Where last.pt, best.pt and history.json are kept.", metavar="DIR")
    ] = None,
    checkpoint_every: Annotated[
        int | None, _kept("Also save every so many steps.", metavar="STEPS", min=1)
    ] = None,
    resume: Annotated[
        bool,
        _kept(
            "Go on exactly where last.pt of --checkpoint-dir stands, if there is one.", "--resume"
        ),
    ] = False,
    log_every: Annotated[int, _kept("Steps between two points of the curves.", min=1)] = 50,
    tensorboard: Annotated[
        str | None, _kept("Write event files; needs fastio\\[tensorboard].", metavar="DIR")
    ] = None,
    visdom: Annotated[
        str | None, _kept("Plot on a visdom server; needs fastio\\[visdom].", metavar="URL")
    ] = None,
) -> Options:
    """The options of a run, of what a command was given."""
    from fastio.train import Options

    given = dict(locals())
    given.pop("Options")
    plain = {n: v.value if isinstance(v, Enum) else v for n, v in given.items()}
    return Options(**plain)


def training(
    batch_size: int,
) -> Callable[[Callable[..., Task]], Callable[..., None]]:
    """Makes a command of a function (options, settings of its own ...) -> Task.

    The command has the parameters of `shared` and those of its own, `--json` and `--quiet`.

    Args:
        batch_size: where the command line has none.
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
        bool, typer.Option("--json", help="Print what came of it as JSON, on one line.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Parameters alone."""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters with their annotations as objects."""
    given = inspect.signature(function).parameters.values()
    hints = get_type_hints(function, localns=_NAMES, include_extras=True)
    return [p.replace(annotation=hints[p.name]) for p in given]


# What annotations for the type checker alone name.
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
    """The end, on standard output; of an interrupted run, how it goes on."""
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
