"""Draws photo-like pictures: to a JPEG codec and a small network what photographs are, from noise.

A picture is a stack of things that hide one another: the "dead leaves" model, whose edges and
power-law sizes give photographs their 1/f spectra (Lee, Mumford, Huang: "Occlusion Models for
Natural Images", IJCV 2001). Each thing has a colour, a light falling over it and a texture cut from
1/f noise; a few large ones and the ground have the shape and the material of the picture's class.
Sensor grain goes over all.

Colours and light are drawn independently of the class, so a mean colour says nothing about it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Plane = npt.NDArray[np.float32]

# Side of the noise fields in pixels, and so the longest side of a picture.
MAX_SIDE = 1024
TEMPLATE_SIDE = 256
# How far a shape's template reaches, in radii of the shape.
TEMPLATE_REACH = 1.25


# --- What is drawn once a process ----------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Fields (MAX_SIDE, MAX_SIDE) of mean 0 and deviation 1, by their amplitude spectra."""

    rough: Plane  # f**-0.5: foliage, gravel, fur
    photo: Plane  # f**-1: the mean of photographs
    cloud: Plane  # f**-1.7: light, sky, skin
    spots: Plane  # one octave around a period of 24 pixels
    grain: Plane  # white, with a lens' fall-off: a sensor


def float32(values: npt.NDArray[Any]) -> Plane:
    """The values as float32."""
    return np.asarray(values, np.float32)


@functools.cache
def noise() -> Noise:
    """The noise that every picture is cut from."""
    rng = np.random.default_rng(20010101)
    fy = np.fft.fftfreq(MAX_SIDE)[:, None]
    fx = np.fft.rfftfreq(MAX_SIDE)[None, :]
    frequency = np.hypot(fy, fx) + 1e-9  # cycles a pixel

    def field(amplitude: npt.NDArray[np.float64]) -> Plane:
        white = rng.standard_normal((MAX_SIDE, MAX_SIDE), dtype=np.float32)
        values = np.fft.irfft2(np.fft.rfft2(white) * amplitude, s=white.shape)
        values -= values.mean()
        return float32(values / values.std())

    # Nothing is slower than 4 periods a field, or cuts of it would differ in their means.
    whole = frequency * MAX_SIDE > 4
    lens = np.exp(-((frequency / 0.5) ** 2))
    return Noise(
        rough=field(whole * lens * frequency**-0.5),
        photo=field(whole * lens * frequency**-1.0),
        cloud=field(whole * frequency**-1.7),
        spots=field(np.exp(-((np.log2(frequency * 24) / 0.4) ** 2))),
        grain=field(lens),
    )


def template(radius_at: Callable[[Plane], Plane]) -> Image.Image:
    """How far inside a star-shaped outline each point is, in radii: an 'F' image."""
    at = np.linspace(-TEMPLATE_REACH, TEMPLATE_REACH, TEMPLATE_SIDE, dtype=np.float32)
    x, y = at[None, :], at[:, None]
    return Image.fromarray(float32(radius_at(np.arctan2(y, x)) - np.hypot(x, y)))


def polygon(corners: int, depth: float = 1.0) -> Callable[[Plane], Plane]:
    """Radius of a regular polygon, or of a star with its inner corners at a radius of depth < 1."""

    def radius(angle: Plane) -> Plane:
        sector = 2 * math.pi / corners
        from_corner = np.abs((angle + sector / 2) % sector - sector / 2)
        if depth == 1.0:
            return float32(math.cos(sector / 2) / np.cos(sector / 2 - from_corner))
        # The line from the outer corner (radius 1) to the inner one, in polar form.
        spread = depth * np.sin(sector / 2 - from_corner) + np.sin(from_corner)
        return float32(depth * math.sin(sector / 2) / spread)

    return radius


def blob(seed: int) -> Callable[[Plane], Plane]:
    """Radius of a smooth random outline."""
    rng = np.random.default_rng([20010102, seed])
    waves = [(k, rng.normal(0, 0.25 / k), rng.uniform(0, 2 * math.pi)) for k in range(1, 9)]

    def radius(angle: Plane) -> Plane:
        total = sum(a * np.cos(k * angle + phase) for k, a, phase in waves)
        return float32(np.clip(0.8 + total, 0.15, 1.2))

    return radius


SHAPES: tuple[Callable[[Plane], Plane], ...] = (
    np.ones_like,  # disc
    polygon(4),
    polygon(3),
    polygon(5, 0.4),  # star
    lambda angle: float32(0.62 + 0.38 * np.cos(3 * angle)),  # three petals
    lambda angle: float32(0.32 / np.hypot(0.32 * np.cos(angle), np.sin(angle))),  # long ellipse
    polygon(4, 0.33),  # four points
    polygon(6),
    lambda angle: float32(0.78 + 0.22 * np.cos(8 * angle)),  # flower
    lambda angle: float32(np.clip(0.55 + 0.45 * np.sin(angle), 0.1, 1.0)),  # heart
)
BLOBS = 24


def shape_radius(shape: int) -> Callable[[Plane], Plane]:
    """Radius of SHAPES[shape], or of a blob for shapes from len(SHAPES) on."""
    return SHAPES[shape] if shape < len(SHAPES) else blob(shape)


@functools.cache
def shape_template(shape: int) -> Image.Image:
    """The template of a shape."""
    return template(shape_radius(shape))


@functools.cache
def outline(shape: int) -> npt.NDArray[np.complex128]:
    """Points of a shape's outline, x + iy in radii."""
    angle = np.linspace(-math.pi, math.pi, 129, dtype=np.float32)
    return np.asarray(shape_radius(shape)(angle) * np.exp(1j * angle))


def bounds(shape: int, turn: float, squeeze: float) -> tuple[float, float, float, float]:
    """How far a shape that lies as stamp() lays it reaches: top, bottom, left, right, in radii."""
    points = outline(shape)
    points = (points.real + 1j / squeeze * points.imag) * complex(math.cos(turn), math.sin(turn))
    x, y = points.real, points.imag
    return float(y.min()), float(y.max()), float(x.min()), float(x.max())


def stamp(
    shape: int,
    radius: float,
    turn: float,
    squeeze: float,
    centre: tuple[float, float],
    size: tuple[int, int],
) -> Plane:
    """A shape in a window of (height, width) pixels: how far inside it each is, in radii.

    The shape lies with its centre at (y, x), turned by `turn` radians, narrower by `squeeze`.
    """
    scale = TEMPLATE_SIDE / (2 * TEMPLATE_REACH * radius)
    cos, sin = scale * math.cos(turn), scale * math.sin(turn)
    (y, x), half = centre, TEMPLATE_SIDE / 2
    affine = (
        *(cos, sin, half - cos * x - sin * y),
        *(-sin * squeeze, cos * squeeze, half + (sin * x - cos * y) * squeeze),
    )
    image = shape_template(shape).transform(
        (size[1], size[0]),
        Image.Transform.AFFINE,
        affine,
        Image.Resampling.BILINEAR,
        fillcolor=-1,
    )
    # In one piece: np.asarray takes an image's bytes in lines of 64 KB, and joins them.
    return np.frombuffer(image.tobytes("raw", "F"), np.float32).reshape(size)


# --- Materials -----------------------------------------------------------------------------------

MATERIALS = (
    "level stripes",
    "upright stripes",
    "slanting stripes",
    "checks",
    "dots",
    "rings",
    "bricks",
    "zigzag",
    "veins",
    "spots",
)
MAX_CLASSES = len(MATERIALS) * len(SHAPES)


def class_material(label: int) -> int:
    """Index into MATERIALS: ten classes in a row differ in it."""
    return label % len(MATERIALS)


def class_shape(label: int) -> int:
    """Index into SHAPES: ten classes in a row differ in it, and the next ten pair it anew."""
    return (label + label // len(MATERIALS)) % len(SHAPES)


def ramp(end: float, count: int) -> Plane:
    """Values from -end to end, count of them; for the few of a thing faster than np.linspace."""
    return np.arange(count, dtype=np.float32) * np.float32(2 * end / (count - 1)) - np.float32(end)


def limited(values: Plane, low: float, high: float) -> Plane:
    """The values, clipped in place; for the few pixels of a thing faster than np.clip."""
    np.maximum(values, np.float32(low), out=values)
    return np.minimum(values, np.float32(high), out=values)


def cut(field: Plane, height: int, width: int, rng: np.random.Generator) -> Plane:
    """A random part (height, width) of a noise field, a view."""
    top = int(rng.integers(MAX_SIDE - height + 1))
    left = int(rng.integers(MAX_SIDE - width + 1))
    return field[top : top + height, left : left + width]


def material(kind: int, height: int, width: int, period: float, rng: np.random.Generator) -> Plane:
    """The pattern MATERIALS[kind] as (height, width) values in [-1, 1], `period` in pixels."""
    slant = {0: 90.0, 1: 0.0, 2: float(rng.choice([-45.0, 45.0]))}.get(kind)
    spread = 10.0 if slant is not None else 180.0
    angle = math.radians((slant or 0.0) + rng.uniform(-spread, spread))
    step = 2 * math.pi / period
    x = np.arange(width, dtype=np.float32)[None, :] * np.float32(step)
    y = np.arange(height, dtype=np.float32)[:, None] * np.float32(step)
    phase = rng.uniform(0, 2 * math.pi, 2).astype(np.float32)
    warp = np.float32(rng.uniform(0.1, 0.6)) * cut(noise().cloud, height, width, rng)
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    u = (x * cos + phase[0]) + (y * sin) + warp
    if kind <= 2:
        wave = np.sin(u)
    elif kind == 5:
        centre = rng.uniform(0.2, 0.8, 2) * (height * step, width * step)
        wave = np.sin(np.hypot(y - np.float32(centre[0]), x - np.float32(centre[1])) + warp)
    elif kind in (8, 9):
        spots = cut(noise().spots, height, width, rng)
        wave = np.cos(4 * spots + warp) if kind == 8 else 2 * spots - 0.5
    else:
        v = (y * cos + phase[1]) - (x * sin)
        wave = lattice(kind, u, v)
    wave *= np.float32(rng.uniform(1.5, 4.0))  # how sharp its edges are
    return float32(np.tanh(wave, out=wave))


def lattice(kind: int, u: Plane, v: Plane) -> Plane:
    """The wave of the materials that need both directions, in radians: checks to zigzag."""
    if kind == 3:
        return float32(np.sin(u) * np.sin(v))
    if kind == 4:
        return float32(np.cos(u) + np.cos(v) - 0.5)
    if kind == 6:
        # Every other row of bricks is shifted by half a brick, which is two rows high and wide.
        shift = np.floor(v / (2 * math.pi)) % 2 * math.pi
        return float32(1.7 * np.maximum(np.cos(v), np.cos(u / 2 + shift)) - 1.2)
    triangle = np.abs((u / math.pi) % 2 - 1)
    return float32(np.sin(v + 3.5 * triangle))


# --- Pictures ------------------------------------------------------------------------------------


class Canvas:
    """Planes (height, width) of luma, from 0 to 1, and of Cb and Cr, around 0, to paint over."""

    def __init__(self, height: int, width: int, rng: np.random.Generator) -> None:
        self.height, self.width, self.rng = height, width, rng
        self.planes = np.zeros((3, height, width), np.float32)
        # A picture has few hues, one direction of light, and a look of its own: soft or crisp.
        self.hues = rng.uniform(0, 2 * math.pi, 3)
        self.roughness = rng.lognormal(math.log(0.025), 0.5)
        self.shadow = (int(rng.integers(2, 9)), int(rng.integers(2, 9)))

    def colour(self) -> npt.NDArray[np.float32]:
        """A random (luma, Cb, Cr), mostly muted, in one of the picture's hues."""
        angle = self.hues[self.rng.integers(3)] + self.rng.normal(0, 0.25)
        luma = self.rng.uniform(0.12, 0.88)
        strength = min(abs(self.rng.normal(0, 0.07)), 0.25) * 2 * min(luma, 1 - luma) + 0.005
        return np.array([luma, strength * math.cos(angle), strength * math.sin(angle)], np.float32)

    def light(self, height: int, width: int, strength: float) -> Plane:
        """A linear gradient of zero mean over (height, width)."""
        dx, dy = self.rng.normal(0, strength, 2)
        return ramp(dx, width)[None, :] + ramp(dy, height)[:, None]

    def texture(self, height: int, width: int, strength: float = 1.0) -> Plane:
        """1/f noise of a random strength and roughness, stronger in some parts than in others."""
        fields = (noise().rough, noise().photo, noise().cloud)
        field = fields[int(np.searchsorted((0.5, 0.9), self.rng.uniform()))]
        strength *= self.roughness * self.rng.lognormal(0, 1.4)
        patches = np.square(cut(noise().cloud, height, width, self.rng))
        patches *= np.float32(min(strength, 0.3))
        patches *= cut(field, height, width, self.rng)
        return patches

    def paint(
        self, window: tuple[slice, slice], mask: Plane | None, luma: Plane, colour: Plane
    ) -> None:
        """Lays `colour`, with `luma` added to its luma, over a window where the mask is 1."""
        tint = min(max(self.rng.normal(0, 0.2), -0.3), 0.3)
        for plane, base, gain in zip(self.planes, colour, (1, tint, -tint), strict=True):
            part = plane[window]
            value = luma * np.float32(gain)
            value += base
            if mask is None:
                part[:] = value
            else:
                value -= part
                value *= mask
                part += value

    def thing(self, shape: int, radius: float, softness: float, kind: int | None) -> None:
        """Paints one thing of a shape at a random place; of a material when `kind` names one.

        radius and softness (the width of its edge) are in pixels.
        """
        rng = self.rng
        cy, cx = rng.uniform(0, self.height), rng.uniform(0, self.width)
        turn, squeeze = rng.uniform(0, 2 * math.pi), rng.uniform(1.0, 1.5)
        # A window no larger than its soft edge and its shadow need: most of the work is a pixel's.
        up, down, before, after = (radius * far for far in bounds(shape, turn, squeeze))
        margin = min(max(softness / 2, 3.6), radius * (TEMPLATE_REACH - 1)) + 1
        top, bottom = max(0, int(cy + up - margin)), min(self.height, int(cy + down + margin) + 1)
        left, right = (
            max(0, int(cx + before - margin)),
            min(self.width, int(cx + after + margin) + 1),
        )
        height, width = bottom - top, right - left
        if min(height, width) <= max(self.shadow):
            return

        inside = stamp(shape, radius, turn, squeeze, (cy - top, cx - left), (height, width))
        mask = inside * np.float32(radius / softness)
        mask += np.float32(0.5)
        limited(mask, 0, 1)

        # Darker towards its edge, as round things are.
        roundness = np.float32(rng.uniform(0, 0.25))
        luma = self.texture(height, width)
        luma += self.light(height, width, 0.08)
        edge = inside - np.float32(0.3)
        np.minimum(edge, np.float32(0.3), out=edge)
        edge *= roundness
        luma += edge
        if kind is not None:
            contrast = np.float32(rng.choice([-1, 1]) * rng.uniform(0.08, 0.24))
            period = rng.uniform(0.04, 0.075) * max(self.height, self.width)
            luma += contrast * material(kind, height, width, period, rng)
        # What lies in the shadow of it: its own mask, softer and a little lower.
        dy, dx = self.shadow
        shade = inside[:-dy, :-dx] * np.float32(-radius / 24)
        shade += np.float32(1 - 0.5 * 0.3)
        self.planes[0, top + dy : bottom, left + dx : right] *= limited(shade, 0.5, 1)
        self.paint((slice(top, bottom), slice(left, right)), mask, luma, self.colour())

    def backdrop(self, kind: int) -> None:
        """A sky or wall above a slanting horizon, and below it a ground of the class's material."""
        rng, height, width = self.rng, self.height, self.width
        everything = (slice(0, height), slice(0, width))
        sky = self.light(height, width, 0.12)
        sky += self.texture(height, width, 0.6)
        self.paint(everything, None, sky, self.colour())

        horizon = rng.uniform(0.15, 0.55) * height
        slope = rng.normal(0, 0.08)
        x = np.arange(width, dtype=np.float32)[None, :] * np.float32(slope)
        y = np.arange(height, dtype=np.float32)[:, None]
        mask = np.clip((y - x - np.float32(horizon)) / np.float32(rng.uniform(1, 8)), 0, 1)
        ground = self.light(height, width, 0.08)
        ground += self.texture(height, width)
        period = rng.uniform(0.04, 0.075) * max(height, width)
        contrast = np.float32(rng.choice([-1, 1]) * rng.uniform(0.08, 0.2))
        ground += contrast * material(kind, height, width, period, rng)
        self.paint(everything, mask, ground, self.colour())

    def develop(self) -> npt.NDArray[np.uint8]:
        """The picture as a camera gives it: exposure, grain, 8 bits; (height, width, 3) YCbCr."""
        rng, height, width = self.rng, self.height, self.width
        exposure = np.float32(rng.uniform(0.85, 1.3) * 255)
        grain = rng.lognormal(math.log(0.75), 1.1)
        out = np.empty((height, width, 3), np.uint8)
        for channel, plane in enumerate(self.planes):
            luma = channel == 0
            plane *= exposure if luma else np.float32(255)
            plane += cut(noise().grain, height, width, rng) * np.float32(
                grain if luma else 0.7 * grain
            )
            # Clipped after the grain, as a sensor does it: what is burnt out is quite flat.
            plane += np.float32(0.5 if luma else 128.5)
            np.clip(plane, 0, 255, out=plane)
            out[:, :, channel] = plane
        return out


def draw(height: int, width: int, label: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Draws one picture of a class, the same for the same generator state.

    height and width are in pixels, at most MAX_SIDE; label is from 0 to MAX_CLASSES - 1.
    Returns YCbCr (height, width, 3), full range as JPEG has it.
    """
    canvas = Canvas(height, width, rng)
    short = min(height, width)
    kind, shape = class_material(label), class_shape(label)
    canvas.backdrop(kind)

    def strangers(count: int, smallest: float, largest: float, softness: float) -> None:
        # Radii by the power law r**-3 that makes the picture's statistics the same at any scale.
        for u in rng.uniform(0, 1, count):
            radius = smallest / math.sqrt(1 - u * (1 - (smallest / largest) ** 2))
            blob_shape = len(SHAPES) + int(rng.integers(BLOBS))
            canvas.thing(blob_shape, radius * short, softness, None)

    strangers(int(rng.integers(4, 14)), 0.05, 0.4, rng.uniform(1, 12))
    for radius in sorted(rng.uniform(0.16, 0.36, int(rng.integers(3, 7))), reverse=True):
        canvas.thing(shape, radius * short, rng.uniform(1, 2.5), kind)
    strangers(int(rng.integers(12, 60)), 0.01, 0.15, rng.uniform(1, 2))
    return canvas.develop()
