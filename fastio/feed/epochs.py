"""Where a loader stands in its epochs: its state, its seeds, and the epoch of its sampler."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from fastio.errors import StateMismatch, warn
from fastio.feed.base import Feed
from fastio.feed.seeds import (
    SamplerGenerator,
    agreed,
    draw_seed,
    generator_state,
    have_group,
    next_seed,
    restore,
    shared_name,
    unchanged,
    with_order_seed,
)
from fastio.order.sampling import Ranks
from fastio.order.state import Cursor, from_state, to_state

if TYPE_CHECKING:
    import torch


class Epochs:
    """The epochs of a loader: where its latest iterator is, and what the next one starts.

    Args:
        feed: feed of the loader.
        seed: seed of all epochs; None if it is drawn.
        generator: generator that draws the epoch's order; None if the seed decides the order, or
            torch's default generator draws it.
        persists: whether epochs after the first one draw no base seed, as with DataLoader's
            persistent workers.

    Attributes:
        feed, generator: as given; the loader may replace them.
        next: where the next iterator starts.
        ranks: rank and world size that decide the loader's part of each global batch.
        timeout_s: maximum time to wait for the seed of rank 0, see `agreed`.
        drawn_last: cursor of the iterator that yielded the last batch.
    """

    def __init__(
        self, feed: Feed, seed: int | None, generator: torch.Generator | None, persists: bool
    ) -> None:
        self.feed = feed
        self.generator = generator
        self.ranks = Ranks()
        self.timeout_s = 0.0
        self.next = self.drawn_last = Cursor(0, 0, seed)
        self._persists = persists
        self._based: Feed | None = None  # whose iterator drew a base seed last
        self._name: str | None = None  # on all ranks
        self._place = self.next, 0  # of the user: `at` makes a cursor of it on request
        self._latest: weakref.ref[Any] | None = None  # the iterator that moves `_place`
        self._sampler_epoch = 0  # the sampler's epoch when it was last looked at

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_based": None, "_latest": None}

    @property
    def at(self) -> Cursor:
        """The cursor after the batch yielded last."""
        cursor, position = self._place
        return replace(cursor, position=position)

    def _go_to(self, cursor: Cursor) -> None:
        """Makes the next iterator start at a cursor."""
        self.next, self._place, self._latest = cursor, (cursor, cursor.position), None

    def start(self, iterator: object, cursor: Cursor) -> None:
        """Records an iterator that starts at a cursor; the next one starts the following epoch."""
        self._go_to(cursor)
        self._latest = weakref.ref(iterator)
        self.next = cursor.at_epoch(cursor.epoch + 1)

    def move(self, iterator: object, cursor: Cursor, position: int) -> None:
        """Records how far an iterator has come, if it is the latest one."""
        # An older iterator that is still used must not move the position back.
        if self._latest is not None and self._latest() is iterator:
            self._place = cursor, position
            if cursor.states is not None:
                cursor.states.reach(position)

    def cursor_of(self, epoch: int) -> Cursor:
        """Returns a cursor in an epoch, with the seed of its draws.

        Raises:
            RuntimeError: draws depend on the seed of the epoch, which is not known.
        """
        known = next((one for one in (self.at, self.drawn_last) if one.decides(epoch)), None)
        if known is None and self.feed.path == "native":
            raise RuntimeError(
                f"the seed of epoch {epoch} is not known: without seed=, it is drawn when the "
                "iterator of the epoch is created"
            )
        return replace(known or self.at, epoch=epoch)

    # The state

    def state(self) -> dict[str, Any]:
        """Returns the state of the loader; see `Loader.state_dict`."""
        cursor, generator = self.at, self.generator
        # Before the first iterator no seed is drawn. The state must have the one that will be, or
        # the restored loader would draw another; it is drawn without moving torch's generator.
        undrawn = cursor.seed is None and cursor.order_seed is None and generator is None
        if undrawn and self.ranks.world_size == 1 and not self.feed.follows_torch:
            cursor = self.next = replace(cursor, seed=next_seed())
            self._place = cursor, cursor.position
        if generator is not None and self.draws_order and cursor.generator is None:
            cursor = replace(cursor, generator=generator_state(generator))
        order = self.feed.order(self.ranks)
        states = self.feed.states(cursor)
        # Only fastio's datasets have versions, which tell at which of them a state was saved.
        grows = hasattr(self.feed.dataset, "earlier_versions")
        return to_state(
            cursor,
            fingerprint=self.feed.fingerprint,
            order=order,
            states=states,
            ended=grows and self.feed.ended(cursor.position, self.ranks),
        )

    def load(self, state: Mapping[str, Any]) -> None:
        """Makes the next iterator start where a state was taken; see `Loader.load_state_dict`."""
        # The sizes of blocks and windows depend on the cache and the memory of the machine, and
        # positions count in that order: a state from another machine brings its own.
        if isinstance(state, Mapping) and state.get("fingerprint") == self.feed.fingerprint:
            saved = state.get("order")
            self.feed.adopt_order(saved if isinstance(saved, Mapping) else {}, self.ranks)
        order = self.feed.order(self.ranks)
        earlier = getattr(self.feed.dataset, "earlier_versions", None)
        cursor = from_state(
            state,
            fingerprint=self.feed.fingerprint,
            order=order,
            earlier=earlier,
            rows=self.feed.epoch_rows() if earlier else 0,
        )
        if self.draws_order != (cursor.generator is not None):
            had, has = ("without", "with") if self.draws_order else ("with", "without")
            raise StateMismatch(
                f"the loader state was saved {had} a generator, but this loader was created "
                f"{has} one: pass generator= to both or to neither"
            )
        if cursor.states is not None and cursor.states.saved is not None:
            self.feed.check_states(cursor.states.saved)
            self._restore_sampler(cursor.states.saved, cursor.position > 0)
        self._go_to(cursor)
        self._tell_sampler(cursor.epoch)

    def _restore_sampler(self, saved: dict[str, Any], within: bool) -> None:
        """Sets the generator of the user's sampler to a saved state.

        Args:
            saved: the saved states. A generator's state of another rank is removed.
            within: whether the loader's state is one from within an epoch.
        """
        found = (SamplerGenerator.of(sampler) for sampler in self._samplers())
        generator = next((one for one in found if one is not None), None)
        if generator is None or generator.load(saved.get("generator")):
            return
        saved.pop("generator", None)
        if within:
            warn(
                "the loader state has no order of a random sampler on this rank. A new order is "
                "drawn: some samples are repeated, and others are left out. To continue exactly, "
                "save and load a state on each rank"
            )

    # The epoch of the loader, and of the user's sampler

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iterator delivers; see `Loader.set_epoch`."""
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        self._tell_sampler(int(epoch))
        # Trainers set the epoch before every epoch, also before one that is resumed in the middle,
        # whose position must be kept.
        same = epoch == self.next.epoch
        self._go_to(self.next if same else self.next.at_epoch(int(epoch)))

    def follow_sampler(self) -> None:
        """Makes the epoch to which the user set the sampler the next one."""
        epoch = self._epoch_of_sampler()
        if epoch not in (self._sampler_epoch, self.next.epoch):
            self.next = self.next.at_epoch(epoch)
        self._sampler_epoch = epoch

    def _samplers(self) -> list[Any]:
        """Returns the given sampler and the sampler nested in it, the outer one first."""
        sampling = self.feed.sampling
        given = sampling.sampler if sampling.batch_sampler is None else sampling.batch_sampler
        return [one for one in (given, getattr(given, "sampler", None)) if one is not None]

    def _tell_sampler(self, epoch: int) -> None:
        """Calls `set_epoch` of the first sampler that has it."""
        for sampler in self._samplers():
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
                break
        self._sampler_epoch = self._epoch_of_sampler()

    def _epoch_of_sampler(self) -> int:
        """Returns the epoch of the sampler, or 0 if it has none."""
        epochs = [getattr(sampler, "epoch", None) for sampler in self._samplers()]
        return next((epoch for epoch in epochs if type(epoch) is int and epoch >= 0), 0)

    # The seeds of the next epoch

    def take_name(self) -> str:
        """Returns the name of the loader, which is the same on all ranks that share its epochs."""
        if self._name is None:
            feed, sampling = self.feed, self.feed.sampling
            kind, rows = type(feed.dataset).__name__, feed.epoch_rows()
            # Not the mode, which depends on the cache's budget: `agreed` makes it that of rank 0.
            how = "in order" if sampling.mode == "sequential" else "shuffled"
            batches = f"batches of {sampling.batch_size}"
            self._name = shared_name(f"{kind} of {rows} rows, {how}, {batches}")
        return self._name

    def rows(self) -> Iterator[int]:
        """Returns the rows of the whole epoch on this rank, in order.

        Raises:
            TypeError: rows are not numbered, or have no order before they are read.
        """
        drawn = self.next.seed is not None or self.next.begun or self.generator is not None
        if not drawn and self.ranks.world_size > 1 and self.feed.random:
            raise TypeError(
                "without seed=, ranks that share an epoch agree on a seed when the first "
                "iterator is created, and the order is not known before: pass seed="
            )
        with unchanged(self.generator):
            cursor = self.drawn(replace(self.next, position=0), ahead=True)
            rows = self.feed.rows(cursor, self.ranks)
            first = list(islice(rows, 1))  # which draws the order
        return chain(first, rows)

    @property
    def draws_order(self) -> bool:
        """Whether the generator decides the order."""
        sampling = self.feed.sampling
        by_seed = sampling.random and self.feed.random  # a dataset that iterates has its own order
        return self.generator is not None and (sampling.draw is not None or by_seed)

    def drawn(self, cursor: Cursor, ahead: bool = False) -> Cursor:
        """Returns a cursor with the seeds of its epoch; seeds that are not given are drawn.

        Args:
            cursor: where an iterator starts.
            ahead: whether to draw on the torch path too what DataLoader would draw, because no
                iterator is made.

        Raises:
            LoaderTimeout: rank 0 did not share its seed in time.
            ValueError: ranks that share the epoch cannot agree on a seed.
        """
        generator, feed = self.generator, self.feed
        resumed = cursor.generator is not None
        if generator is not None and cursor.generator is not None:
            restore(generator, cursor.generator)
        if generator is not None and self.draws_order:
            cursor = replace(cursor, generator=generator_state(generator))
        # DataLoader draws this before its sampler draws anything; on the torch path it does here,
        # and the sampler draws when its first key is asked for. An epoch that goes on in the middle
        # has drawn both from torch's default generator before.
        own = ahead or feed.path == "native"
        again = self._based is feed or (resumed and cursor.epoch > 0)
        drawn = self._persists and again
        drawn = drawn or (generator is None and cursor.begun)
        base = draw_seed(generator) if own and not drawn else None
        self._based = self._based if ahead else feed
        if generator is not None and self.draws_order and feed.sampling.draw is None:
            cursor = replace(cursor, order_seed=draw_seed(generator))
        elif generator is None and own:
            cursor = with_order_seed(cursor, feed.sampling, self.ranks, feed.follows_torch)
        if cursor.seed is not None:
            if self._name is None and not ahead and feed.order_varies and have_group(self.ranks):
                self._agreed(cursor.seed)
            return cursor
        if generator is not None or not feed.random:
            return replace(cursor, seed=base or 0)
        follows = feed.follows_torch and self.ranks.world_size == 1
        if follows or cursor.follows_torch:
            return replace(cursor, seed=cursor.order_seed if base is None else base)
        seed = next_seed() if base is None else base
        if self.ranks.world_size > 1 and feed.sampling.ours:
            seed = self._agreed(seed)
        return replace(cursor, seed=seed)

    def _agreed(self, seed: int) -> int:
        """Has all ranks use the order of rank 0, and returns its seed."""
        order = self.feed.order(self.ranks)
        seed, order = agreed(seed, order, self.ranks, self.take_name(), self.timeout_s)
        self.feed.adopt_order(order, self.ranks)
        return seed

    def __len__(self) -> int:
        """Returns the number of samples of a whole epoch on this rank."""
        rows, size = self.feed.epoch_rows(), self.feed.sampling.batch_size or 1
        full, rest = divmod(rows, size * self.ranks.world_size)
        return full * size + -(-rest // self.ranks.world_size)
