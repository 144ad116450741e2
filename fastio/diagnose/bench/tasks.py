"""Models by name for tokens and tables: fastio.train's tasks know which field is what."""

from __future__ import annotations

from fastio.diagnose.bench.options import Options
from fastio.errors import BenchError, TrainError
from fastio.schema import Schema
from fastio.train import Options as TrainOptions
from fastio.train.models import ENCODER_SIZES, TABULAR_MODELS
from fastio.train.tabular import TabularSettings, TabularTask, tabular_task
from fastio.train.text import TextSettings, TextTask, text_task

TEXT_BATCH, TEXT_LENGTH = 32, 512  # as `fastio train text` has them

LearnedTask = TextTask | TabularTask


def task_of(options: Options, schema: Schema) -> LearnedTask | None:
    """Returns the task that a named model learns, from tokens or from a table.

    Args:
        options: of the bench.
        schema: of its data.

    Returns:
        fastio.train's task; None: the data is of images, or no model was named.

    Raises:
        BenchError: there is no such model, or the data lacks what it learns from.
    """
    if not options.model_by_name or schema.image_fields:
        return None
    kind = "tokens" if schema.token_fields else "tables"
    known = sorted(ENCODER_SIZES if schema.token_fields else TABULAR_MODELS)
    if options.model not in known:
        raise BenchError(
            f"there is no model {options.model!r} of {kind}; there are {', '.join(known)}; or give "
            "MODULE:FUNCTION, a function that returns a torch module"
        )
    if options.storage_options:
        raise BenchError(
            f"models of {kind} by name take no storage options: give MODULE:FUNCTION, or set them "
            "in the environment"
        )
    try:
        return _task(options, bool(schema.token_fields))
    except TrainError as error:
        raise BenchError(
            f"{error}. {options.model} learns from what `fastio train` does by default; for "
            "anything else give MODULE:FUNCTION, a function that returns a torch module"
        ) from error


def _task(options: Options, text: bool) -> LearnedTask:
    how = TrainOptions(data=options.data, seed=options.seed)
    assert options.model is not None
    if text:
        length = options.length or TEXT_LENGTH
        return text_task(how, TextSettings(model=options.model, length=length))
    return tabular_task(how, TabularSettings(model=options.model))
