"""Transforms that draw which operations on pixels are run: policies, and lists of transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastio import _native
from fastio.transforms.batches import mixing_of
from fastio.transforms.pixel_checks import (
    Fill,
    PixelTransform,
    applied,
    bad,
    fill_of,
    is_bilinear,
    is_number,
)
from fastio.transforms.pixels import Grayscale, Pad
from fastio.transforms.policies import (
    AUTO_AUGMENT_POLICIES,
    Space,
    auto_space,
    mix_space,
    rand_space,
    wide_space,
)
from fastio.transforms.specs import RandomHorizontalFlip, RandomVerticalFlip


@dataclass(frozen=True)
class RandAugment(PixelTransform):
    """Applies `num_ops` random operations of one magnitude (Cubuk et al., 2019).

    Args:
        num_ops: number of operations.
        magnitude: strength of all, in [0, num_magnitude_bins).
        num_magnitude_bins: number of strengths.
        interpolation: "nearest" or "bilinear", of operations that move pixels.
        fill: value outside of the image, one number or one per channel; None for 0.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill = None

    def node(self) -> _native.Augment:
        if not 0 <= self.magnitude < self.num_magnitude_bins or self.num_magnitude_bins < 2:
            raise bad(self, f"magnitude must be in [0, num_magnitude_bins), got {self.magnitude!r}")
        if not isinstance(self.num_ops, int) or self.num_ops < 0:
            raise bad(self, f"num_ops must be an int >= 0, got {self.num_ops!r}")
        space = rand_space(self.num_magnitude_bins)
        nodes = [_policy_op(self, space, name, self.magnitude) for name in space]
        if not self.num_ops:
            return _native.Augment.sequence([])
        return _native.Augment.repeat(self.num_ops, [_one_of(nodes)])


@dataclass(frozen=True)
class TrivialAugmentWide(PixelTransform):
    """Applies one random operation of a random magnitude (Mueller and Hutter, 2021).

    Args:
        num_magnitude_bins: number of strengths.
        interpolation, fill: as in `RandAugment`.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill = None

    def node(self) -> _native.Augment:
        if self.num_magnitude_bins < 2:
            raise bad(self, f"num_magnitude_bins must be >= 2, got {self.num_magnitude_bins!r}")
        space = wide_space(self.num_magnitude_bins)
        return _one_of([_policy_op(self, space, name, None) for name in space])


@dataclass(frozen=True)
class AutoAugment(PixelTransform):
    """Applies a random sub-policy of two operations, as learned on a dataset (Cubuk et al., 2018).

    Args:
        policy: "imagenet", "cifar10" or "svhn".
        interpolation, fill: as in `RandAugment`.
    """

    policy: str = "imagenet"
    interpolation: str = "nearest"
    fill: Fill = None

    def node(self) -> _native.Augment:
        name = str(getattr(self.policy, "value", self.policy))
        if name not in AUTO_AUGMENT_POLICIES:
            known = ", ".join(AUTO_AUGMENT_POLICIES)
            raise bad(self, f"policy must be one of {known}, got {self.policy!r}")
        space = auto_space()
        policies = []
        for policy in AUTO_AUGMENT_POLICIES[name]:
            ops = [
                applied(self, p, _policy_op(self, space, op, magnitude or 0))
                for op, p, magnitude in policy
            ]
            policies.append(_native.Augment.sequence(ops))
        return _one_of(policies)


@dataclass(frozen=True)
class AugMix(PixelTransform):
    """Mixes the image with several chains of random operations on it (Hendrycks et al., 2020).

    Args:
        severity: greatest strength of the operations, 1 to 10.
        mixture_width: number of chains.
        chain_depth: number of operations in a chain; 0 or less draws 1 to 3.
        alpha: parameter of the distributions of the weights.
        all_ops: also use brightness, contrast, saturation and sharpness.
        interpolation, fill: as in `RandAugment`.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: str = "bilinear"
    fill: Fill = None

    def node(self) -> _native.Augment:
        if not 1 <= self.severity <= 10:
            raise bad(self, f"severity must be in [1, 10], got {self.severity!r}")
        if not 1 <= self.mixture_width <= 16 or self.chain_depth > 16:
            raise bad(self, "mixture_width must be in [1, 16], and chain_depth at most 16")
        if not is_number(self.alpha) or self.alpha <= 0:
            raise bad(self, f"alpha must be positive, got {self.alpha!r}")
        space = mix_space(self.all_ops, self.severity)
        chain = _one_of([_policy_op(self, space, name, None) for name in space])
        return _native.Augment.mix(self.mixture_width, self.chain_depth, float(self.alpha), chain)


def _one_of(nodes: Sequence[_native.Augment]) -> _native.Augment:
    return _native.Augment.choice([1.0] * len(nodes), list(nodes))


def _policy_op(
    policy: RandAugment | TrivialAugmentWide | AutoAugment | AugMix,
    space: Space,
    name: str,
    magnitude: int | None,
) -> _native.Augment:
    """Returns an operation of a policy; its strength is drawn if `magnitude` is None."""
    operation = space[name]
    if operation is None:
        return _native.Augment.sequence([])
    strengths = operation.strengths
    values = strengths if magnitude is None or not strengths else [strengths[magnitude]]
    fill, smooth = fill_of(policy, policy.fill), is_bilinear(policy, policy.interpolation)
    return operation.node(values, fill, smooth)


@dataclass(frozen=True)
class RandomApply(PixelTransform):
    """Applies a list of transforms with probability p."""

    transforms: Sequence[Any]
    p: float = 0.5

    def node(self) -> _native.Augment:
        return applied(self, self.p, *_nodes(self, self.transforms))


@dataclass(frozen=True)
class RandomChoice(PixelTransform):
    """Applies one transform of a list, to each image; under the key None, `Mixup` or `CutMix`.

    Args:
        transforms: the list.
        p: weights of the transforms; None for equal ones.
    """

    transforms: Sequence[Any]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        # A choice of Mixup and CutMix has no native form: it runs once a batch.
        if mixing_of(self) is None:
            super().__post_init__()

    def node(self) -> _native.Augment:
        nodes = _nodes(self, self.transforms)
        weights = [1.0] * len(nodes) if self.p is None else list(self.p)
        try:
            return _native.Augment.choice([float(weight) for weight in weights], nodes)
        except (TypeError, ValueError) as error:
            raise bad(self, f"p: {error}") from None


@dataclass(frozen=True)
class RandomOrder(PixelTransform):
    """Applies all transforms of a list in random order."""

    transforms: Sequence[Any]

    def node(self) -> _native.Augment:
        return _native.Augment.order(_nodes(self, self.transforms))


@dataclass(frozen=True)
class Compose(PixelTransform):
    """Applies a list of transforms one after the other, as one transform of a `RandomChoice`."""

    transforms: Sequence[Any]

    def node(self) -> _native.Augment:
        return _native.Augment.sequence(_nodes(self, self.transforms))


def _nodes(transform: object, steps: Sequence[Any]) -> list[_native.Augment]:
    """Returns the operations of transforms inside of another one."""
    if not isinstance(steps, Sequence) or isinstance(steps, str) or not steps:
        raise bad(transform, f"transforms must be a list of transforms, got {steps!r}")
    nodes = []
    for step in steps:
        single = isinstance(step, Grayscale) and step.num_output_channels == 1
        if single or isinstance(step, Pad) or not isinstance(step, PixelTransform):
            if isinstance(step, (RandomHorizontalFlip, RandomVerticalFlip)):
                nodes.append(_flip(step))
                continue
            raise bad(
                transform,
                f"{step!r} cannot stand inside: only operations that keep size and channels",
            )
        nodes.append(step.node())
    return nodes


def _flip(step: RandomHorizontalFlip | RandomVerticalFlip) -> _native.Augment:
    way = "horizontal" if isinstance(step, RandomHorizontalFlip) else "vertical"
    return applied(step, step.p, _native.Augment.op(f"flip_{way}", []))
