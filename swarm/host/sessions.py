"""Keys and values of requests in progress, within a budget of bytes. A session is a cache, never a truth.

Whatever is missing here is primed again by the caller; so when room is needed, the oldest of whoever holds
most goes first, and what nobody
used for a while goes too, because its coordinator may be gone.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from swarm.errors import CacheMiss, PeerRefused
from swarm.model.batch import Cache

IDLE_S = 60.0
MAX_SESSIONS = 256
"""Sessions of one owner."""


Key = tuple[str, *tuple[str | int, ...]]
"""The owner, which is the coordinator's peer id, and what tells its sessions apart."""


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
        self._held: OrderedDict[Key, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def open(self, key: Key, epoch: int, cache: Cache, size_bytes: int) -> None:
        """Keep `cache`, which will grow to `size_bytes`, in place of an older epoch. Raises PeerRefused."""
        if size_bytes > self.budget_bytes:
            raise PeerRefused(f"a cache of {size_bytes} bytes exceeds this node's budget of {self.budget_bytes}")
        self.drop(key)
        self._drop_idle()
        while self.size_bytes + size_bytes > self.budget_bytes:
            self._evict(self._greediest())
        if sum(held[0] == key[0] for held in self._held) >= MAX_SESSIONS:
            self._evict(key[0])
        self._held[key] = _Session(epoch, cache, size_bytes, self._clock())
        self.size_bytes += size_bytes

    def get(self, key: Key, epoch: int) -> Cache:
        """Raises CacheMiss."""
        session = self._held.get(key)
        if session is None or session.epoch != epoch:
            raise CacheMiss(f"no keys and values of epoch {epoch} are held here; prime them again")
        session.used = self._clock()
        self._held.move_to_end(key)
        return session.cache

    def drop(self, key: Key) -> None:
        session = self._held.pop(key, None)
        if session is not None:
            self.size_bytes -= session.size_bytes

    def release(self, prefix: Key) -> None:
        """Drop every session whose key begins with `prefix`."""
        for key in [key for key in self._held if key[: len(prefix)] == prefix]:
            self.drop(key)

    def _greediest(self) -> str:
        """Who holds most here makes room, so that one caller's flood costs nobody else a session."""
        sizes: dict[str, int] = {}
        for key, session in self._held.items():
            sizes[key[0]] = sizes.get(key[0], 0) + session.size_bytes
        return max(sizes, key=lambda owner: sizes[owner])

    def _evict(self, owner: str) -> None:
        """The session that `owner` used least lately."""
        self.evicted += 1
        self.drop(next(key for key in self._held if key[0] == owner))

    def _drop_idle(self) -> None:
        oldest = self._clock() - IDLE_S
        for key in [key for key, session in self._held.items() if session.used < oldest]:
            self.drop(key)
