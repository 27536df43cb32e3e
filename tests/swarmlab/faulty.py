"""A daemon with one thing wrong: `python -m tests.swarmlab.faulty FLAGS` in the place of `-m glossd.start`.

It is a real peer that serves its span, until a word in the file `fault` of its state folder tells it what to do wrong
from the next pass on. `Faulty` starts one and tells it.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from swarm.wire.frames import Message, Tensors
from swarm.wire.messages import PassAnswer, PassRequest
from swarm.wire.tensors import Tensor
from tests.swarmlab.daemons import Daemon

if TYPE_CHECKING:
    from swarm.host.host import Answer
    from swarm.ids import PeerId

SLOWNESS = 10
FILE, MARK = "fault", "did wrong"

log = logging.getLogger("swarm.faulty")


class Fault(StrEnum):
    """What is wrong with the passes of a peer. All but LIE can be noticed from outside."""

    NONE = "none"
    FAIL = "fail"
    SLOW = "slow"
    """Ten times the time that a pass takes here."""
    HANG = "hang"
    NAN = "nan"
    HUGE = "huge"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    LIE = "lie"
    """Answers in good form that are not true."""
    STALE = "stale"
    """Answers for the step before."""
    REPLAY = "replay"
    """Sends its last frame again before each new one."""
    DISCONNECT = "disconnect"
    """Hangs up in the middle of a frame."""


@dataclass
class Faulty(Daemon):
    """A daemon that does as it is told. `wrongs` counts what it did wrong since it was launched."""

    module: str = "tests.swarmlab.faulty"

    def tell(self, fault: Fault) -> None:
        draft = self.folder / f"{FILE}.new"
        draft.write_text(fault)
        os.replace(draft, self.folder / FILE)

    @property
    def wrongs(self) -> int:
        return self.log.count(MARK)


def _float(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensor], Tensor]:
    """A change of float tensors with more than one side, which hidden states and log-probabilities are."""

    def twist(tensor: Tensor) -> Tensor:
        if tensor.is_integer or len(tensor.shape) < 2:
            return tensor
        return Tensor.of(tensor.name, change(tensor.array().copy()))

    return twist


def _with(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array.reshape(-1)[array.size // 2] = value
        return array

    return change


def _lie(tensor: Tensor) -> Tensor:
    """Hidden states that are a little larger, and score rows whose tokens changed places."""
    if tensor.name == "hidden":
        return _float(lambda array: array * np.float32(1.1))(tensor)
    return Tensor.integers("ids", np.roll(tensor.as_int32(), 1, axis=1)) if tensor.name == "ids" else tensor


TWISTS: dict[Fault, Callable[[Tensor], Tensor]] = {
    Fault.NAN: _float(_with(float("nan"))),
    Fault.HUGE: _float(_with(3e38)),
    Fault.WRONG_SHAPE: _float(lambda array: array[..., :-1]),
    Fault.WRONG_DTYPE: _float(lambda array: array.astype(np.float16)),
    Fault.LIE: _lie,
}


def _install(told: Callable[[], Fault]) -> None:
    """Put a host and links that are wrong into the place of the daemon's own."""
    from glossd import hosting, node
    from swarm.host.host import SpanHost
    from swarm.net.links import Links

    class FaultyHost(SpanHost):
        async def answer(self, request: PassRequest, tensors: Tensors) -> "Answer":
            fault, began = told(), time.monotonic()
            if fault in (Fault.FAIL, Fault.HANG, Fault.SLOW, *TWISTS):
                log.info(MARK, extra={"fields": {"fault": str(fault)}})
            if fault is Fault.FAIL:
                raise RuntimeError("told to fail")
            if fault is Fault.HANG:
                await asyncio.Event().wait()
            answer, parts = await super().answer(request, tensors)
            if fault is Fault.SLOW:
                await asyncio.sleep((SLOWNESS - 1) * (time.monotonic() - began))
            return answer, tuple(map(TWISTS[fault], parts)) if fault in TWISTS else parts

    class FaultyLinks(Links):
        _last: tuple["PeerId", str, list[bytes | memoryview]] | None = None

        async def send(
            self, peer: "PeerId", protocol: str, message: Message, tensors: Sequence[Tensor] = (), **more: bool
        ) -> None:
            if told() is Fault.STALE and isinstance(message, PassRequest | PassAnswer):
                log.info(MARK, extra={"fields": {"fault": "stale"}})
                message = message.model_copy(update={"step": abs(message.step - 1)})
            await super().send(peer, protocol, message, tensors, **more)

        async def _write(self, peer: "PeerId", protocol: str, frame: list[bytes | memoryview]) -> None:
            fault, last = told(), self._last
            self._last = peer, protocol, frame
            if fault in (Fault.REPLAY, Fault.DISCONNECT):
                log.info(MARK, extra={"fields": {"fault": str(fault)}})
            if fault is Fault.REPLAY and last is not None:
                await super()._write(*last)
            if fault is Fault.DISCONNECT:
                link, whole = await self._link(peer, protocol), b"".join(frame)
                await link.write([whole[: len(whole) // 2]])
                await self._drop(link)
                return
            await super()._write(peer, protocol, frame)

    hosting.SpanHost, node.Links = FaultyHost, FaultyLinks


def _told(file: Path) -> Fault:
    return Fault(file.read_text()) if file.exists() else Fault.NONE


if __name__ == "__main__":
    from glossd.daemon import main

    _install(partial(_told, Path(json.loads(sys.argv[1])["state_dir"]) / FILE))
    code = main()
    sys.stderr.flush()
    os._exit(code)
