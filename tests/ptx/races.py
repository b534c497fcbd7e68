"""Which accesses of memory by the threads of a GPU are ordered, and which race.

A barrier of a block orders what its threads did before with what they do behind it, and one of a
warp does so for its lanes.  Nothing orders blocks.  Two accesses of one word by several threads of
which none comes first are a race, unless both read: another run of the same program may compute
other bits, whatever an emulator makes of it.
"""

from __future__ import annotations

import numpy as np


class EmulationError(RuntimeError):
    """A kernel did something invalid."""


class Threads:
    """Of a grid: the block and the warp of each thread, and the barriers that it has passed."""

    def __init__(self, blocks: int, per_block: int):
        self.block, number = np.divmod(np.arange(blocks * per_block), per_block)
        self.warp = self.block * -(-per_block // 32) + number // 32
        #: Barriers of the block, times 2**32, and of the warp since the last of those.
        self.time = np.zeros(blocks * per_block, np.int64)

    def pass_barrier(self, threads) -> None:
        """Of their blocks."""
        self.time[threads] = ((self.time[threads] >> 32) + 1) << 32

    def pass_warp_barrier(self, threads) -> None:
        self.time[threads] += 1


# Who made the last accesses of a word: one thread, or several of a warp, of a block, of the grid.
_THREAD, _WARP, _BLOCK, _GRID = range(4)


class _Last:
    """The last accesses of one kind, for each word."""

    def __init__(self, words: int, threads: Threads, is_shared: bool):
        self.threads, self.is_shared = threads, is_shared
        self.thread = np.zeros(words, np.int32)  # + 1; 0 for none
        self.time = np.zeros(words, np.int64)
        self.by = np.zeros(words, np.int8)

    def _compare(self, at, thread):
        """Of the last accesses and of one by ``thread``: what they share, and what is past."""
        warp, block, time = self.threads.warp, self.threads.block, self.threads.time
        last = self.thread[at] - 1
        share = np.full(len(at), _GRID, np.int8)
        share[block[last] == block[thread]] = _BLOCK
        share[warp[last] == warp[thread]] = _WARP
        share[last == thread] = _THREAD
        share = np.maximum(share, self.by[at])
        now, then = time[thread], self.time[at]
        is_past = (share <= _BLOCK) & (then >> 32 < now >> 32)
        is_past |= (share <= _WARP) & (then < now)
        return share, is_past, last >= 0

    def _are_past(self, at, thread) -> bool:
        """Whether all are, as is seen at a glance: none, or in front of a barrier of the block."""
        if not (last := self.thread[at]).any():
            return True
        now, then = self.threads.time[thread], self.time[at]
        return self.is_shared and bool(((then >> 32 < now >> 32) | (last == 0)).all())

    def unordered(self, at, thread):
        """Which accesses by ``thread`` are not behind the last ones."""
        if self._are_past(at, thread):
            return np.zeros(len(at), bool)
        share, is_past, exists = self._compare(at, thread)
        return exists & ~is_past & (share > _THREAD)

    def add(self, at, thread) -> None:
        """Accesses by ``thread``; what they are behind need not be known any longer."""
        if self._are_past(at, thread):
            self.by[at] = _THREAD
        else:
            share, is_past, exists = self._compare(at, thread)
            self.by[at] = np.where(exists & ~is_past, share, _THREAD)
        self.thread[at], self.time[at] = thread + 1, self.threads.time[thread]
        if (others := self.thread[at] != thread + 1).any():  # several at once
            at, thread, other = at[others], thread[others], self.thread[at[others]] - 1
            share = (self.threads.warp[other] != self.threads.warp[thread]) + _WARP
            share[self.threads.block[other] != self.threads.block[thread]] = _GRID
            for by in (_WARP, _BLOCK, _GRID):
                where = at[share >= by]
                self.by[where] = np.maximum(self.by[where], by)

    def forget(self, at) -> None:
        self.thread[at] = self.by[at] = 0


class Accesses:
    """The accesses of one memory; words are as small as the smallest of them.

    Raises EmulationError for races, and, if the memory holds nothing in the beginning, where what
    is read was not written.
    """

    def __init__(self, space: str, words: int, threads: Threads, is_empty: bool):
        self.space, self.is_empty, self.threads = space, is_empty, threads
        self.reads, self.writes = (_Last(words, threads, space == "shared") for _ in range(2))
        #: What asynchronous copies will write, and asynchronous products will read: how often.
        self.arriving, self.leaving = np.zeros(words, bool), np.zeros(words, np.int16)
        self.is_atomic = np.zeros(words, bool)
        #: Fences for asynchronous reads: when each thread had its last, and, of each word, when its
        #: writer had one behind the write; in barriers of the block, + 1, 0 for never.
        self.fence = np.zeros(len(threads.time), np.int64)
        self.fenced = np.zeros(words, np.int64)

    def _refuse(self, bad, what: str) -> None:
        if bad.any():
            raise EmulationError(f"race in {self.space} memory: {what}, {int(bad.sum())} words")

    def read(self, at, thread) -> None:
        self._refuse(self.arriving[at], "read of what is still being copied")
        self._refuse(self.writes.unordered(at, thread), "no barrier between a write and a read")
        if self.is_empty and not (found := self.writes.thread[at] > 0).all():
            raise EmulationError(f"{self.space} memory is read that was not written: {~found}")
        self.reads.add(at, thread)

    def start_write(self, at, thread, changes) -> None:
        """Nobody may have anything to do with the words until :meth:`end_write`.

        But several threads may write the same bits, which ``changes`` nothing.
        """
        self._refuse(self.arriving[at], "write to what is still being copied")
        self._refuse(self.leaving[at] > 0, "write to what is still being multiplied")
        self._refuse(self.reads.unordered(at, thread), "no barrier between a read and a write")
        bad = self.writes.unordered(at, thread) & changes
        self._refuse(bad, "no barrier between two writes")

    def end_write(self, at, thread, is_lost) -> None:
        """``is_lost`` is where other bits are there now."""
        self._refuse(is_lost, "two threads write other bits at once")
        self.reads.forget(at)
        self.writes.add(at, thread)
        self.is_atomic[at], self.fenced[at] = False, 0

    def update(self, at, thread) -> None:
        """Atomic updates, which need no order among themselves."""
        self.start_write(at, thread, ~self.is_atomic[at])
        self.end_write(at, thread, np.zeros(len(at), bool))
        self.is_atomic[at] = True

    def fence_writes(self, m) -> None:
        """By the threads ``m``: asynchronous reads see what they wrote, or were to see."""
        now = (self.threads.time >> 32) + 1
        self.fence[m] = now[m]
        words = np.flatnonzero(np.append(False, m)[self.writes.thread] & (self.fenced == 0))
        self.fenced[words] = now[self.writes.thread[words] - 1]

    def start_async_read(self, at, thread) -> None:
        """Nobody may write to the words until :meth:`end_async_read`."""
        self.read(at, thread)
        now, then = self.threads.time[thread] >> 32, self.writes.time[at] >> 32
        is_behind = self.fence[thread] > then + 1  # in front of the barrier, or by the same thread
        is_own = self.writes.thread[at] == thread + 1
        is_before = (self.fenced[at] > 0) & ((self.fenced[at] <= now) | is_own)
        self._refuse(~is_behind & ~is_before, "no fence between a write and an asynchronous read")
        np.add.at(self.leaving, at, 1)

    def end_async_read(self, at, thread) -> None:
        np.subtract.at(self.leaving, at, 1)
        self.reads.add(at, thread)
