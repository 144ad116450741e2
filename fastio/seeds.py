"""What a loader draws from torch's generators, and how the ranks of an epoch agree on a seed."""

from __future__ import annotations

import base64
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Any

import numpy as np
import torch

from fastio.errors import LoaderTimeout, ShardingWarning, StateMismatch, warn
from fastio.resume import Cursor
from fastio.sampling import Permutation, Ranks, Sampling


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed of 63 bits, drawn as DataLoader draws its base seed.

    Args:
        generator: on the CPU; None for torch's default one.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


@contextmanager
def unchanged(generator: torch.Generator | None) -> Iterator[None]:
    """Puts a generator, or torch's default one, back to where it was at the beginning."""
    drawn_from = torch.default_generator if generator is None else generator
    state = drawn_from.get_state()
    try:
        yield
    finally:
        drawn_from.set_state(state)


def next_seed() -> int:
    """The seed that `draw_seed(None)` will draw, which is not drawn yet."""
    with unchanged(None):
        return draw_seed(None)


def drawn_by(generator: torch.Generator | None, sampling: Sampling) -> Sampling:
    """The sampling whose shuffled epochs a generator draws, exactly as DataLoader's are.

    Another one stays as it is: a sequential one, or one by windows.

    Args:
        generator: None for torch's default one.
        sampling: without either.
    """
    if not sampling.ours or sampling.mode != "shuffle":
        return sampling
    if generator is None:
        return replace(sampling, permute=_permutation_of_seed)
    return replace(sampling, order="shuffle", draw=partial(_permutation, generator))


def _permutation(generator: torch.Generator, rows: int) -> Permutation:
    """What RandomSampler draws: int64 (rows,), or int32 with the same values."""
    dtype = torch.int32 if rows < 1 << 31 else torch.int64
    permutation: Permutation = torch.randperm(rows, generator=generator, dtype=dtype).numpy()
    return permutation


def _permutation_of_seed(rows: int, seed: int) -> Permutation:
    """What RandomSampler draws where it has no generator, from a seed by torch's default one."""
    return _permutation(torch.Generator().manual_seed(seed), rows)


def with_order_seed(cursor: Cursor, sampling: Sampling, ranks: Ranks, follows: bool) -> Cursor:
    """Draws from torch's default generator what RandomSampler draws when an epoch begins.

    Args:
        cursor: where an iterator begins.
        sampling: of a loader without a generator.
        ranks: that share the epoch. Several have a DistributedSampler with DataLoader, which draws
            nothing.
        follows: the epoch can have RandomSampler's order.

    Returns:
        The cursor, with the seed of that order where it has no seed of its own.
    """
    shuffled = sampling.ours and sampling.mode != "sequential"
    if cursor.begun or not shuffled or ranks.world_size > 1:
        return cursor
    seed = draw_seed(None)
    return replace(cursor, order_seed=seed) if follows and cursor.seed is None else cursor


def generator_state(generator: torch.Generator) -> str:
    """The state of a generator on the CPU as text, about 3 KB."""
    words = generator.get_state().numpy().view(np.uint32).reshape(-1, 2)  # every second one is 0
    return base64.b85encode(zlib.compress(words.T.tobytes())).decode()


def restore(generator: torch.Generator, state: str) -> None:
    """Puts a generator where `generator_state` was taken.

    Raises:
        StateMismatch: the text is no such state.
    """
    try:
        words = np.frombuffer(zlib.decompress(base64.b85decode(state)), np.uint32)
        found = np.ascontiguousarray(words.reshape(2, -1).T)
        generator.set_state(torch.from_numpy(found.reshape(-1).view(np.uint8)))
    except (zlib.error, RuntimeError, TypeError, ValueError) as error:
        raise StateMismatch(f"not the state of a generator of this torch: {error}") from error


# Ranks


def process_ranks() -> Ranks:
    """This process's part: by torch.distributed where it is initialised, else by torchrun.

    Raises:
        ValueError: the environment's RANK and WORLD_SIZE are no numbers, or not of a process.
    """
    ranks = distributed_ranks()
    if ranks is not None:
        return ranks
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Ranks()
    found = os.environ["RANK"], os.environ["WORLD_SIZE"]
    try:
        return Ranks(*map(int, found))
    except ValueError as error:
        raise ValueError(
            f"the environment's RANK and WORLD_SIZE, {found[0]!r} and {found[1]!r}, are not "
            "those of a process: unset them, or give rank= and world_size="
        ) from error


def distributed_ranks() -> Ranks | None:
    """This process in torch.distributed's group of all, or None where it is not initialised."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    return None


def shared_name(what: str) -> str:
    """A name for a loader that several ranks have, which is the same on all of them.

    Args:
        what: describes it. Of loaders that are described alike, each rank makes as many, in the
            same order.
    """
    return f"{what}, number {next(_numbers(what))} of these"


@cache
def _numbers(what: str) -> Iterator[int]:
    return count(1)


def agreed_seed(seed: int, ranks: Ranks, name: str, timeout_s: float = 0) -> int:
    """The seed of the process group's rank 0, which leaves it for the others in the group's store.

    Rank 0 waits for nobody, and the others only until it has begun to iterate. It is no
    collective operation: nothing else that ranks do at different times gets in its way.

    Args:
        seed: of this process; returned where it shares its epoch with no other.
        ranks: that share the epoch.
        name: of the loader, see `shared_name`.
        timeout_s: longest wait for rank 0; 0 for the process group's timeout.

    Raises:
        LoaderTimeout: rank 0 did not begin to iterate over the loader.
        ValueError: the ranks have no process group to agree in.
    """
    if ranks.world_size == 1:
        return seed
    group = distributed_ranks()
    if group is None or group.world_size < ranks.world_size:
        raise ValueError(
            f"{ranks.world_size} ranks share an epoch and have no process group in which to agree "
            "on its seed: give all of them the same seed=, or call "
            "torch.distributed.init_process_group before the first iteration"
        )
    key, store = f"fastio/seed/{name}", _store()
    if group.rank == 0:
        store.set(key, str(seed))
        return seed
    limit_s = timeout_s or store.timeout.total_seconds()
    ends_s, pause_s = time.monotonic() + limit_s, 0.01
    while not store.check([key]):
        if time.monotonic() >= ends_s:
            raise LoaderTimeout(
                f"rank {group.rank} waited {limit_s:g} s for the seed of rank 0, which did not "
                f"begin to iterate over this loader ({name}): iterate on rank 0 too, or give all "
                "ranks the same seed=, with which none waits for another"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.5)
    return int(store.get(key))


def _store() -> Any:
    """Where the ranks of the process group leave words for each other."""
    store = torch.distributed.distributed_c10d._get_default_store()
    if store is None:  # MPI has none
        raise ValueError(
            "the process group has no store in which its ranks could agree on a seed: give all of "
            "them the same seed="
        )
    return store


def warn_unsharded() -> None:
    """Warns, once a process, where there are several processes; for a loader with no choice."""
    group = distributed_ranks()
    launched = os.environ.get("WORLD_SIZE", "1")
    count = group.world_size if group is not None else int(launched) if launched.isdecimal() else 1
    if count > 1:
        _warn_once(count)


@cache
def _warn_once(count: int) -> None:
    warn(
        f"this process is one of {count}, and this loader gives all of the data to each of them, "
        "as a DataLoader without a sampler does: pass distributed=True to Loader to give each "
        "process its part, or distributed=False if each is to get all of it",
        ShardingWarning,
    )
