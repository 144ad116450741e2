"""Python functions that run once per sample, between native decoding and native batching."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fastio.errors import TransformError
from fastio.runtime.signatures import parameters
from fastio.transforms.specs import spoken

Workers = Literal["threads", "processes", "interpreters"]
SampleType = Literal["array", "pillow", "tensor", "tv_tensor"]

# How a parameter's annotation ends, as text or as (module, name), and the type that it means.
_ANNOTATIONS: dict[str, SampleType] = {
    "ndarray": "array",
    "NDArray": "array",
    "Image.Image": "pillow",
    "tv_tensors.Image": "tv_tensor",
    "_image.Image": "tv_tensor",
    "Tensor": "tensor",
}

_ARGS, _OPTIONS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True, repr=False)
class PerSample:
    """Calls a Python function once per sample, in parallel workers.

    The workers persist over epochs. The results do not depend on their kind, number or speed, as
    long as the function draws random numbers from `rng` only.

    Args:
        function: called as function(sample). If a parameter after the first is named `rng`, or the
            second one has no default, it also gets a `numpy.random.Generator`, which is keyed by
            (seed, epoch, row, occurrence of the row, place in the list). If `functools.partial`
            binds `rng` by name, that value is used instead. For a decorated function
            (`functools.wraps`), the parameters of the wrapper count, and further ones of the
            wrapped function: by position if the wrapper takes `*args`, by name if it takes
            `**kwargs`. An image is a uint8 array (H, W, C) that is valid during the call only. The
            result is an array, a tensor, a PIL image, a number, or a dict, tuple or list of such
            values. Arrays of three axes that are the whole result for an image field are images
            (H, W, C), and are delivered as tensors (N, C, H, W); all else is stacked as it is.
            Values whose shapes differ are delivered as a list.
        workers: "processes" for any Python; "threads" for functions that spend their time in code
            that releases the interpreter's lock, such as OpenCV. In processes the global generators
            of `random`, NumPy and torch are seeded for each sample; threads share them.
            "interpreters" needs subinterpreters, which NumPy does not support.
        count: number of workers; None for `num_workers`, or as many as the cores that this process
            may use if that is 0 or "auto".
        sample: type of the images that the function gets: "array", "pillow" for a PIL image,
            "tensor" for a uint8 tensor (C, H, W), "tv_tensor" for `torchvision.tv_tensors.Image`.
            None follows the annotation of the first parameter, and is "array" without one.

    Raises:
        TransformError: an argument is not possible.
    """

    function: Callable[..., Any]
    workers: Workers = "processes"
    count: int | None = None
    sample: SampleType | None = None

    def __post_init__(self) -> None:
        if isinstance(self.function, PerSample) or not callable(self.function):
            raise TransformError(f"PerSample takes a callable, got {self.function!r}")
        if self.workers not in get_args(Workers):
            raise TransformError(
                f"PerSample: workers must be one of {', '.join(get_args(Workers))}, got "
                f"{self.workers!r}"
            )
        if self.workers == "interpreters":
            raise TransformError(
                "PerSample(workers='interpreters') needs subinterpreters that can import NumPy: "
                + (
                    f"this is Python {sys.version_info[0]}.{sys.version_info[1]}, and they come "
                    "with 3.14"
                    if sys.version_info < (3, 14)
                    else "NumPy does not support them"
                )
                + ". Use workers='processes'"
            )
        if self.count is not None and (not isinstance(self.count, int) or self.count < 1):
            raise TransformError(f"PerSample: count must be at least 1, got {self.count!r}")
        if self.sample not in (None, *get_args(SampleType)):
            raise TransformError(
                f"PerSample: sample must be one of {', '.join(get_args(SampleType))}, got "
                f"{self.sample!r}"
            )

    def __repr__(self) -> str:
        return f"PerSample({spoken(self.function)})"

    @property
    def rng_by(self) -> Literal["position", "name"] | None:
        """How the function gets the random generator: as its second argument, as `rng`, or not."""
        bound = self.function.keywords if isinstance(self.function, functools.partial) else {}
        known = [each for each in _parameters(self.function) if each.name not in bound]
        positional = [each for each in known if each.kind in _BY_POSITION]
        named = any(each.name == "rng" and each.kind in _BY_NAME for each in known[1:])
        if len(positional) > 1:
            second = positional[1]
            if second.name == "rng" or (not named and second.default is inspect.Parameter.empty):
                return "position"
        return "name" if named else None

    @property
    def sample_type(self) -> SampleType:
        """The type of the images that the function gets."""
        return self.sample or _annotated(self.function) or "array"


@dataclass(frozen=True)
class Pipeline:
    """Steps of a torchvision pipeline that run one after the other, as in its `Compose`."""

    steps: tuple[Callable[[Any], Any], ...]

    def __call__(self, sample: Any) -> Any:
        for step in self.steps:
            sample = step(sample)
        return sample

    def __repr__(self) -> str:
        return ", ".join(spoken(step) for step in self.steps)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters of a function; none if they are not known, as for some built-ins."""
    if inspect.ismethod(function):
        return _parameters(function.__func__)[1:]
    call = getattr(function, "__call__", None)  # noqa: B004
    try:
        if isinstance(function, functools.partial):
            own = _of_partial(function)
        elif inspect.ismethod(call):
            own = _parameters(call)
        else:
            own = list(parameters(function, follow_wrapped=False).values())
    except (TypeError, ValueError):
        own = []
    wrapped = getattr(function, "__wrapped__", None)
    return own if wrapped is None else _passed_on(own, _parameters(wrapped))


def _of_partial(function: functools.partial[Any]) -> list[inspect.Parameter]:
    def stub() -> None:
        """Has the parameters: `inspect` would take those of the innermost function."""

    stub.__signature__ = inspect.Signature(_parameters(function.func))  # type: ignore[attr-defined]
    bound = functools.partial(stub, *function.args, **function.keywords)
    return list(parameters(bound).values())


def _passed_on(
    own: list[inspect.Parameter], wrapped: list[inspect.Parameter]
) -> list[inspect.Parameter]:
    """Returns the parameters of a function that passes those that it does not name to another one.

    Args:
        own: its parameters; none if they are not known, as for what Numba compiles.
        wrapped: those of the function that it wraps.
    """
    kinds = {each.kind for each in own}
    named = {each.name: each for each in own if each.kind not in (_ARGS, _OPTIONS)}
    if len(named) == len(own):
        return own or wrapped
    rest = wrapped[sum(each.kind in _BY_POSITION for each in named.values()) :]
    found = [*named.values(), *(each for each in rest if each.name not in named)]
    if _ARGS not in kinds:
        found = [
            each if each.name in named else each.replace(kind=_BY_NAME[1])
            for each in found
            if each.name in named or each.kind in _BY_NAME
        ]
    if _OPTIONS not in kinds:
        found = [each.replace(kind=_BY_POSITION[0]) for each in found if each.kind in _BY_POSITION]
    return sorted(found, key=lambda each: each.kind)


def _annotated(function: Callable[..., Any]) -> SampleType | None:
    """Returns the type of image that the first parameter's annotation names, or None."""
    # `functools.wraps` copies the annotations of the wrapped function, by the names that it has.
    try:
        first = next(iter(parameters(function).values()))
    except (TypeError, ValueError, StopIteration):
        return None
    called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    try:
        annotation = typing.get_type_hints(called).get(first.name, first.annotation)
    except Exception:  # a name that exists for the type checker only
        annotation = first.annotation
    text = annotation if isinstance(annotation, str) else _name(annotation)
    for end, found in _ANNOTATIONS.items():
        if text.split("[")[0].endswith(end):
            return found
    return None


def _name(annotation: Any) -> str:
    origin = typing.get_origin(annotation) or annotation
    return f"{getattr(origin, '__module__', '')}.{getattr(origin, '__qualname__', '')}"
