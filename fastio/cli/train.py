"""fastio train: complete training loops to run, read and copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    check_there,
    clear_errors,
    complain,
    parse_groups,
    parse_names,
    say,
    say_json,
)
from fastio.cli.described import Written, descriptions, with_options_of
from fastio.train.options import ImageSettings, Options, TabularSettings, TextSettings

if TYPE_CHECKING:
    from fastio.train import Result, Task

train = typer.Typer(
    help="Train a model. Under torchrun (torchrun --nproc-per-node 8 -m fastio train ...) every "
    "process trains on its part of each batch.",
    no_args_is_help=True,
)

_WRITTEN = {
    "val": Written(metavar="DATA"),
    "threads": Written(least=0),
    "seed": Written(least=0),
    "early_stopping": Written(metavar="PATIENCE"),
    "checkpoint_dir": Written(metavar="DIR"),
    "checkpoint_every": Written(metavar="STEPS"),
    "tensorboard": Written(metavar="DIR"),
    "visdom": Written(metavar="URL"),
}
_LABEL = {"label": Written(metavar="FIELD")}
_TABULAR = _LABEL | {
    "dense": Written(metavar="A,B,...", parse=parse_names),
    "sparse": Written(metavar="A,B,...", parse=parse_names),
    "groups": Written(
        "group",
        "NAME=A,B,...",
        "For example dense=I1..I13. May be repeated.",
        True,
        parse=partial(parse_groups, "--group"),
    ),
}


def _training(
    settings: type[Any], batch_size: int, written: Mapping[str, Written] = _LABEL
) -> Callable[[Callable[[Options, Any], Task]], Callable[..., None]]:
    """Returns a decorator that makes a command from a function (options, settings) -> task.

    Args:
        settings: the settings of the task.
        batch_size: the default batch size.
        written: how its settings are written on the command line.
    """

    def decorate(make: Callable[[Options, Any], Task]) -> Callable[..., None]:
        def command(
            given: dict[str, Any],
            data: Annotated[
                str, typer.Argument(metavar="DATA", help=descriptions(Options)["data"])
            ],
            as_json: Annotated[
                bool, typer.Option("--json", help="Print the result as JSON on one line.")
            ] = False,
            quiet: Annotated[
                bool, typer.Option("--quiet", "-q", help="Print no progress.")
            ] = False,
        ) -> None:
            own = {field.name: given.pop(field.name) for field in fields(settings)}
            with clear_errors():
                check_there(data)
                check_there(given["val"])
                options = Options(data, **given)
                _run(lambda: make(options, settings(**own)), options, as_json, quiet)

        command.__name__, command.__doc__ = make.__name__, make.__doc__
        return with_options_of(
            settings,
            Options,
            written={**_WRITTEN, **written},
            without=frozenset({"data"}),
            defaults={"batch_size": batch_size},
        )(command)

    return decorate


@train.command()
@_training(ImageSettings, batch_size=64)
def image(options: Options, settings: ImageSettings) -> Task:
    """Classify images."""
    from fastio.train.image import image_task

    return image_task(options, settings)


@train.command()
@_training(TextSettings, batch_size=32)
def text(options: Options, settings: TextSettings) -> Task:
    """Classify text, or train a language model, on tokens that `fastio pack --tokenizer` made."""
    from fastio.train.text import text_task

    return text_task(options, settings)


@train.command()
@_training(TabularSettings, batch_size=16_384, written=_TABULAR)
def tabular(options: Options, settings: TabularSettings) -> Task:
    """Train on rows of numbers and ids from a packed table or from table files."""
    from fastio.train.tabular import tabular_task

    return tabular_task(options, settings)


def _run(make: Callable[[], Task], options: Options, as_json: bool, quiet: bool) -> None:
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
    if not main or quiet:
        result = fit(make(), options, Monitors(*monitors))
    else:
        from fastio.train.progress import Bar

        with Bar(advises=not as_json) as bar:
            result = fit(make(), options, Monitors(bar, *monitors))
    if main:
        _tell(result, options, as_json, quiet)
    if result.signal:
        raise typer.Exit(128 + result.signal)


def _tell(result: Result, options: Options, as_json: bool, quiet: bool) -> None:
    """Prints the result on stdout and, after an interruption, how to continue the run on stderr."""
    if as_json:
        say_json(result.to_dict())
    elif not quiet and result.best is not None:
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
