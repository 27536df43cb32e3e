"""Keys and values of requests in progress, within a budget of bytes. A session is a cache, never a truth.

Whatever is missing here is primed again by the caller; so the oldest goes first when room is needed, and what nobody
used for a while goes too, because its coordinator may be gone.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from swarm.errors import CacheMiss, PeerRefused
from swarm.model.batch import Cache

IDLE_S = 60.0


@dataclass(slots=True)
class _Session:
    epoch: int
    cache: Cache
    size_bytes: int
    used: float


class Sessions:
    """`clock` gives seconds."""

    def __init__(self, budget_bytes: int, clock: Callable[[], float]) -> None:
        self.budget_bytes = budget_bytes
        self.size_bytes = 0
        self.evicted = 0
        self._clock = clock
        self._held: OrderedDict[Hashable, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def open(self, key: Hashable, epoch: int, cache: Cache, size_bytes: int) -> None:
        """Keep `cache`, which will grow to `size_bytes`, in place of an older epoch. Raises PeerRefused."""
        if size_bytes > self.budget_bytes:
            raise PeerRefused(f"a cache of {size_bytes} bytes exceeds this node's budget of {self.budget_bytes}")
        self.drop(key)
        self._drop_idle()
        while self.size_bytes + size_bytes > self.budget_bytes:
            self.evicted += 1
            self.drop(next(iter(self._held)))
        self._held[key] = _Session(epoch, cache, size_bytes, self._clock())
        self.size_bytes += size_bytes

    def get(self, key: Hashable, epoch: int) -> Cache:
        """Raises CacheMiss."""
        session = self._held.get(key)
        if session is None or session.epoch != epoch:
            raise CacheMiss(f"no keys and values of epoch {epoch} are held here; prime them again")
        session.used = self._clock()
        self._held.move_to_end(key)
        return session.cache

    def drop(self, key: Hashable) -> None:
        session = self._held.pop(key, None)
        if session is not None:
            self.size_bytes -= session.size_bytes

    def _drop_idle(self) -> None:
        oldest = self._clock() - IDLE_S
        for key in [key for key, session in self._held.items() if session.used < oldest]:
            self.drop(key)
