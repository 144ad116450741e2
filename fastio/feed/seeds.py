"""Seeds that a loader draws from torch's generators, and how the ranks of an epoch agree on one."""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from fastio.errors import LoaderTimeout, ShardingWarning, StateMismatch, warn
from fastio.order.orders import Permutation
from fastio.order.sampling import Ranks, Sampling
from fastio.order.state import Cursor, OrderState
from fastio.runtime.cores import node_count
from fastio.stage.shuffling import by_generator

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def draw_seed(generator: torch.Generator | None) -> int:
    """Returns a seed of 63 bits, drawn as DataLoader draws its base seed.

    Args:
        generator: generator on the CPU; None for torch's default one.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


@contextmanager
def unchanged(generator: torch.Generator | None) -> Iterator[None]:
    """Restores the state of a generator, or of torch's default one, at the end of the block."""
    drawn_from = torch.default_generator if generator is None else generator
    state = drawn_from.get_state()
    try:
        yield
    finally:
        drawn_from.set_state(state)


def next_seed() -> int:
    """Returns the seed that `draw_seed(None)` will draw next, without drawing it."""
    with unchanged(None):
        return draw_seed(None)


def drawn_by(generator: torch.Generator | None, sampling: Sampling) -> Sampling:
    """Returns a sampling whose shuffled epochs a generator draws, exactly as DataLoader's.

    It also gets `generator_of`.

    Args:
        generator: generator; None for torch's default one.
        sampling: sampling without `draw` and `permute`; see `by_generator`.
    """
    draw = None if generator is None else partial(_permutation, generator)
    sampling = replace(sampling, generator_of=SamplerGenerator.of)
    return by_generator(sampling, draw, _permutation_of_seed)


def _permutation(generator: torch.Generator, rows: int) -> Permutation:
    """Returns RandomSampler's permutation: int64 (rows,), or int32 with the same values."""
    # randperm draws the same numbers for both types, and int32 takes half of the memory.
    dtype = torch.int32 if rows < 1 << 31 else torch.int64
    permutation: Permutation = torch.randperm(rows, generator=generator, dtype=dtype).numpy()
    return permutation


def _permutation_of_seed(rows: int, seed: int) -> Permutation:
    """Returns RandomSampler's permutation for a seed that torch's default generator drew."""
    return _permutation(torch.Generator().manual_seed(seed), rows)


def with_order_seed(cursor: Cursor, sampling: Sampling, ranks: Ranks, follows: bool) -> Cursor:
    """Draws from torch's default generator what RandomSampler draws when an epoch starts.

    Args:
        cursor: where an iterator starts.
        sampling: sampling of a loader without a generator.
        ranks: ranks that share the epoch. With several, DataLoader uses a DistributedSampler, which
            draws nothing.
        follows: whether the epoch can have RandomSampler's order.

    Returns:
        The cursor, with the seed of that order if it has no seed of its own.
    """
    shuffled = sampling.ours and sampling.mode != "sequential"
    if cursor.begun or not shuffled or ranks.world_size > 1:
        return cursor
    seed = draw_seed(None)
    return replace(cursor, order_seed=seed) if follows and cursor.seed is None else cursor


def generator_state(generator: torch.Generator) -> str:
    """Returns the state of a CPU generator as text, about 3 KB."""
    words = generator.get_state().numpy().view(np.uint32).reshape(-1, 2)  # every second one is 0
    return base64.b85encode(zlib.compress(words.T.tobytes())).decode()


@dataclass(frozen=True)
class SamplerGenerator:
    """The generator from which one of torch's random samplers draws its orders.

    Attributes:
        own: the sampler's own generator; None for torch's default one.
    """

    own: torch.Generator | None

    @classmethod
    def of(cls, sampler: object) -> SamplerGenerator | None:
        """Returns the generator of a sampler, or None if the sampler is not one of torch's."""
        random = RandomSampler, SubsetRandomSampler, WeightedRandomSampler
        return cls(getattr(sampler, "generator", None)) if type(sampler) in random else None

    def state(self) -> dict[str, Any]:
        """Returns the present state, and the rank of this process."""
        generator = torch.default_generator if self.own is None else self.own
        return {"rank": _rank(), "state": generator_state(generator)}

    def load(self, state: object) -> bool:
        """Sets the sampler's own generator to a saved state.

        Returns:
            False if there is none, or if it was saved by a process with another rank, whose sampler
            may have drawn another order.

        Raises:
            StateMismatch: it is no such state.
        """
        if state is None or (isinstance(state, Mapping) and state.get("rank") != _rank()):
            return False
        saved = state.get("state") if isinstance(state, Mapping) else state
        restore(torch.Generator() if self.own is None else self.own, saved)
        return True

    @contextmanager
    def drawing_again(self, state: Mapping[str, Any] | None) -> Iterator[None]:
        """In the block, the generator has a saved state, if there is one.

        Torch's default generator is as before afterwards.
        """
        if state is None:
            yield
        elif self.own is not None:
            restore(self.own, state["state"])
            yield
        else:
            with unchanged(None):
                restore(torch.default_generator, state["state"])
                yield


def _rank() -> int:
    """Returns the rank of this process; 0 if the environment has none that is valid."""
    try:
        return process_ranks().rank
    except ValueError:
        return 0


def restore(generator: torch.Generator, state: object) -> None:
    """Sets a generator to the state that `generator_state` returned.

    Raises:
        StateMismatch: the text is not such a state.
    """
    try:
        words = np.frombuffer(zlib.decompress(base64.b85decode(str(state))), np.uint32)
        found = np.ascontiguousarray(words.reshape(2, -1).T)
        generator.set_state(torch.from_numpy(found.reshape(-1).view(np.uint8)))
    except (zlib.error, RuntimeError, TypeError, ValueError) as error:
        raise StateMismatch(f"not a generator state of this torch version: {error}") from error


# Ranks


def process_ranks() -> Ranks:
    """Returns this process's rank and world size from torch.distributed, else from torchrun.

    Raises:
        ValueError: RANK and WORLD_SIZE of the environment are not numbers, or not a valid rank.
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
            f"the environment's RANK and WORLD_SIZE, {found[0]!r} and {found[1]!r}, are not a "
            "valid rank and world size: unset them, or pass rank= and world_size="
        ) from error


def distributed_ranks() -> Ranks | None:
    """Returns this process's rank in torch.distributed; None if it is not initialised."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    return None


def is_mesh(distributed: object) -> TypeGuard[DeviceMesh]:
    """Returns whether a loader's argument `distributed` is a mesh of torch."""
    return hasattr(distributed, "get_coordinate")  # its class takes long to import


def mesh_ranks(mesh: DeviceMesh) -> Ranks:
    """Returns this process's rank and world size along all dimensions of a mesh.

    Raises:
        ValueError: this process is not in the mesh.
    """
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(
            f"this process is not in the mesh {mesh}: create the loader on ranks of the mesh only"
        )
    rank, world_size = 0, 1
    for dim, place in enumerate(coordinate):
        rank, world_size = rank * mesh.size(dim) + place, world_size * mesh.size(dim)
    return Ranks(rank, world_size)


def ranks_of(
    given: Ranks | None, sampling: Sampling, distributed: bool | DeviceMesh | None
) -> Ranks:
    """Returns this process's rank and world size for a loader with these arguments."""
    if given is None and not sampling.ours:  # a sampler or the dataset divides the rows
        return distributed_ranks() or Ranks()
    if given is None and is_mesh(distributed):
        given = mesh_ranks(distributed)
    # Without `distributed`, every process gets all of the data, as with a DataLoader.
    found = given or (process_ranks() if distributed else Ranks())
    return replace(found, nodes=node_count(found.world_size))


def shared_name(what: str) -> str:
    """Returns a name for a loader that is the same on all ranks.

    Args:
        what: description of the loader. All ranks must make the same number of loaders with the
            same description, in the same order.
    """
    return f"{what}, number {next(_numbers(what))} of these"


@cache  # one counter for the process: two equal loaders must not find each other's seeds
def _numbers(what: str) -> Iterator[int]:
    return count(1)


def agreed(
    seed: int, order: OrderState, ranks: Ranks, name: str, timeout_s: float
) -> tuple[int, OrderState]:
    """Returns the seed and the order of rank 0, which shares them in the process group's store.

    Rank 0 never waits; the others wait only until rank 0 has started to iterate. This is not a
    collective operation, so it cannot interfere with other work of the ranks.

    Args:
        seed: seed of this process.
        order: its sizes of blocks and windows, see `Feed.order`. They depend on the cache's budget,
            and thus on the disk of its node.
        ranks: ranks that share the epoch; more than one.
        name: name of the loader, see `shared_name`.
        timeout_s: maximum time to wait for rank 0; 0 uses the timeout of the process group.

    Raises:
        LoaderTimeout: rank 0 did not start to iterate over the loader.
        ValueError: the ranks have no process group in which to agree.
    """
    group = distributed_ranks()
    if group is None or group.world_size < ranks.world_size:
        raise ValueError(
            f"{ranks.world_size} ranks share an epoch and have no process group in which to agree "
            "on its seed: give all of them the same seed=, or call "
            "torch.distributed.init_process_group before the first iteration"
        )
    key, store = f"fastio/seed/{name}", _store()
    if group.rank == 0:
        store.set(key, json.dumps([seed, dict(order)]))
        return seed, order
    # Polled, since `store.get` waits in native code: deaf to Ctrl-C, for the timeout of the process
    # group, and with an error that does not say which loader it was.
    limit_s = timeout_s or store.timeout.total_seconds()
    ends_s, pause_s = time.monotonic() + limit_s, 0.01
    while not store.check([key]):
        if time.monotonic() >= ends_s:
            raise LoaderTimeout(
                f"rank {group.rank} waited {limit_s:g} s for the seed of rank 0, which did not "
                f"start to iterate over this loader ({name}): iterate on rank 0 too. With the "
                "same seed= on all ranks, no rank waits for another, unless data behind a URL is "
                "cached: all ranks then use the order of rank 0"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.5)
    seed, order = json.loads(store.get(key))
    return seed, order


def have_group(ranks: Ranks) -> bool:
    """Returns whether several ranks share an epoch and have a process group in which to agree."""
    group = distributed_ranks()
    return group is not None and 1 < ranks.world_size <= group.world_size


def _store() -> Any:
    """Returns the store of the process group; raises an error if it has none."""
    store = torch.distributed.distributed_c10d._get_default_store()
    if store is None:  # MPI has none
        raise ValueError(
            "the process group has no store in which its ranks could agree on a seed: give all of "
            "them the same seed="
        )
    return store


def warn_unsharded() -> None:
    """Warns once per process if several processes run and the loader was not told how to shard."""
    group = distributed_ranks()
    launched = os.environ.get("WORLD_SIZE", "1")
    count = group.world_size if group is not None else int(launched) if launched.isdecimal() else 1
    if count > 1:
        _warn_once(count)


@cache
def _warn_once(count: int) -> None:
    warn(
        f"this process is one of {count}, and this loader gives all of the data to each of "
        "them, as a DataLoader without a sampler does: pass distributed=True to Loader to "
        "give each process its part, or distributed=False if each should get all of it",
        ShardingWarning,
    )
