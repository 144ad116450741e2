"""Several outputs of one image, and image fields that share their random draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastio.errors import TransformError
from fastio.transforms.specs import spoken

MOST_VIEWS = 256  # of an image: the draws of each have a number


class ViewList(list[Any]):
    """A list with one entry for each view of an image."""


@dataclass(frozen=True)
class Views:
    """Several outputs of one image, each with transforms and a size of its own.

    The image is read once, and what several views need of it is decoded once. Each view draws its
    own random numbers. Give it in the place of a field's transforms::

        crops = {"global": (2, [RandomResizedCrop(224)]), "local": (8, [RandomResizedCrop(96)])}
        fastio.Loader(path, 256, transforms=fastio.Views(crops))

    Transforms that follow it in a list, as Normalize often does, are appended to each view's.

    Args:
        views: a dict or a list of views. A view is a list of transforms, or (count, list) for a
            number of views with equal transforms.

            A dict is delivered as a dict with the same keys: a tensor (N, C, H, W) for a list of
            transforms, and a list of such tensors for (count, list). A list is delivered as one
            flat list of tensors: `[(2, [...]), (8, [...])]` gives ten.

    Raises:
        TransformError: there are no views, more than 256, or a count is not an int of at least 1.
    """

    views: Mapping[str, Any] | Sequence[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.views, (Mapping, list, tuple)) or not self.views:
            raise TransformError(f"Views takes a dict or a list of views, got {self.views!r}")
        if isinstance(self.views, Mapping) and not all(isinstance(n, str) for n in self.views):
            raise TransformError(f"Views: names must be strings, got {list(self.views)}")
        for count, _ in self._entries():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise TransformError(f"Views: a count must be an int of at least 1, got {count!r}")
        if len(self) > MOST_VIEWS:
            raise TransformError(f"Views: {len(self)} views, and there can be {MOST_VIEWS}")

    def __len__(self) -> int:
        """Returns the number of views."""
        return sum(count for count, _ in self._entries())

    def __repr__(self) -> str:
        counts = [count for count, _ in self._entries()]
        if not isinstance(self.views, Mapping):
            return f"Views({counts})"
        return f"Views({dict(zip(self.views, counts, strict=True))})"

    def lists(self) -> list[Any]:
        """Returns the transforms of each view, in order."""
        return [steps for count, steps in self._entries() for _ in range(count)]

    def names(self) -> list[str]:
        """Returns the place of each view in what is delivered, such as "[global][1]"."""
        if not isinstance(self.views, Mapping):
            return [f"[{place}]" for place in range(len(self))]
        found = []
        for name, given in self.views.items():
            alone = not _counted(given)
            found += [f"[{name}]" if alone else f"[{name}][{n}]" for n in range(_entry(given)[0])]
        return found

    def arranged(self, parts: Sequence[Any]) -> dict[str, Any] | ViewList:
        """Returns one value for each view in the structure that is delivered."""
        if not isinstance(self.views, Mapping):
            return ViewList(parts)
        found: dict[str, Any] = {}
        begin = 0
        for name, given in self.views.items():
            end = begin + _entry(given)[0]
            found[name] = ViewList(parts[begin:end]) if _counted(given) else parts[begin]
            begin = end
        return found

    def flat(self, arranged: Any) -> list[Any]:
        """Returns the values of the views of what `arranged` returned."""
        if not isinstance(self.views, Mapping):
            return list(arranged)
        found: list[Any] = []
        for name, given in self.views.items():
            found += arranged[name] if _counted(given) else [arranged[name]]
        return found

    def _entries(self) -> list[tuple[Any, Any]]:
        views = self.views.values() if isinstance(self.views, Mapping) else self.views
        return [_entry(given) for given in views]


def _counted(given: Any) -> bool:
    """Returns whether an entry is (count, transforms)."""
    # Distinguishes (count, list) from a tuple of two functions.
    return isinstance(given, tuple) and len(given) == 2 and not callable(given[0])


def _entry(given: Any) -> tuple[Any, Any]:
    return given if _counted(given) else (1, given)


class OnViews:
    """Applies functions to the views of a batch.

    Args:
        views: the views, which say how a batch is arranged.
        functions: functions of each view, applied in order.
    """

    def __init__(self, views: Views, functions: Sequence[Sequence[Callable[[Any], Any]]]) -> None:
        self._views = views
        self._functions = functions

    def __call__(self, batch: Any) -> Any:
        """Returns the batch after the functions."""
        parts = self._views.flat(batch)
        for place, functions in enumerate(self._functions):
            for function in functions:
                parts[place] = function(parts[place])
        return self._views.arranged(parts)


@dataclass(frozen=True)
class SameDraws:
    """Transforms of an image field that draw the same random numbers as those of another one.

    Steps at the same place of the two lists draw alike: with the same transforms, an image and its
    target get the same crop and flip::

        transforms={
            "image": [RandomResizedCrop(224), RandomHorizontalFlip(), ColorJitter(0.4)],
            "target": SameDraws("image", [
                RandomResizedCrop(224, interpolation="nearest"), RandomHorizontalFlip(),
            ]),
        }

    Crops are drawn for the size of an image: the two should be of one size. Without it, each field
    draws its own.

    Args:
        field: name of the other field.
        transforms: the field's transforms.

    Raises:
        TransformError: an argument is not possible.
    """

    field: str
    transforms: Any

    def __post_init__(self) -> None:
        if not isinstance(self.field, str):
            raise TransformError(f"SameDraws takes the name of a field, got {self.field!r}")
        if isinstance(self.transforms, SameDraws):
            raise TransformError(f"{spoken(self.transforms)} cannot stand inside SameDraws")
