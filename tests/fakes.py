"""A Service without a swarm: it plays a script of events and remembers what it was asked and what was cancelled."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from glossd.api.schemas import BanInfo, Caches, PeerInfo, Queue, Sockets, Status
from glossd.events import Cell, Committed, Done, Hop, Plan, RequestEvent, Step, Text, Timings, Usage
from glossd.tasks import Task
from swarm.errors import BadRequest

PEER = "12D3KooWfake"
HOP = Hop(peer=PEER, span="0:4", local=True)
PLAN = Plan(
    id="r1",
    model="gloss-tiny",
    chain=(HOP,),
    prompt_tokens=3,
    masks=2,
    blocks=1,
    settings={"seed": 0},
    canvas=(Cell(state="masked"), Cell(state="masked")),
)
STEP = Step(
    step=0,
    block=0,
    committed=(Committed(position=3, text="Hello", confidence=0.9),),
    masks_left=1,
    passes=1,
    tokens_per_s=10.0,
    chain=(HOP,),
    canvas=(Cell(state="committed", text="Hello"), Cell(state="guessed", text=" word")),
)
DONE = Done(
    id="r1",
    text="Hello world",
    reason="stop",
    token_ids=(5, 6),
    usage=Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5),
    timings=Timings(queued_s=0, decode_s=0.1, steps=2, passes=2, replays=0, tokens_per_s=20.0),
    peers=(PEER,),
)
GOOD: tuple[RequestEvent, ...] = (PLAN, STEP, Text(text="Hello"), Text(text=" world"), DONE)


class FakeRunning:
    id = "r1"

    def __init__(self, script: tuple[RequestEvent | Exception, ...], hang: bool) -> None:
        self._script = script
        self._hang = hang
        self.cancelled = asyncio.Event()

    async def events(self) -> AsyncIterator[RequestEvent]:
        for event in self._script:
            if isinstance(event, Exception):
                raise event
            yield event
        if self._hang:
            await asyncio.Event().wait()

    def cancel(self) -> None:
        self.cancelled.set()


class FakeService:
    """`script` is what each request plays; with `hang` it then stays silent. `refuse` is raised at submission."""

    def __init__(self) -> None:
        self.script: tuple[RequestEvent | Exception, ...] = GOOD
        self.hang = False
        self.refuse: Exception | None = None
        self.uncovered: tuple[int, ...] = ()
        self.tasks: list[Task] = []
        self.running: list[FakeRunning] = []
        self.banned: list[BanInfo] = []
        self.submitted = asyncio.Event()
        self.stopped = asyncio.Event()
        self.state = "online"

    async def submit(self, task: Task) -> FakeRunning:
        if self.refuse is not None:
            raise self.refuse
        self.tasks.append(task)
        self.running.append(FakeRunning(self.script, self.hang))
        self.submitted.set()
        return self.running[-1]

    async def status(self) -> Status:
        changed: dict[str, Any] = {"uncovered": self.uncovered, "covered": not self.uncovered}
        return Status(
            peer=PEER,
            version="0.1.0",
            pid=1,
            uptime_s=12.5,
            model="gloss-tiny",
            model_hash="a" * 64,
            tokenizer_hash="b" * 64,
            dtype="float32",
            n_parts=4,
            span="0:4",
            state=self.state,
            peers=1,
            addresses=("/ip4/127.0.0.1/tcp/1/p2p/x",),
            join="glossd run --join /ip4/127.0.0.1/tcp/1/p2p/x",
            sockets=Sockets(unix="/s", http=None),
            queue=Queue(running=0, waiting=0, limit=64),
            caches=Caches(sessions=0, size_bytes=0, limit_bytes=2**30),
            requests={"done": 2},
            **changed,
        )

    async def peers(self) -> list[PeerInfo]:
        here = PeerInfo(
            peer=PEER,
            span="0:4",
            dtype="float32",
            throughput=1e3,
            state="online",
            version="0.1.0",
            local=True,
            expires_in_s=9.0,
        )
        return [here]

    def bans(self) -> list[BanInfo]:
        return self.banned

    async def ban(self, peer: str, reason: str) -> None:
        self.banned.append(BanInfo(peer=peer, since=0.0, reason=reason))

    def unban(self, peer: str) -> None:
        kept = [ban for ban in self.banned if ban.peer != peer]
        if kept == self.banned:
            raise BadRequest("that peer is not banned", "peer")
        self.banned = kept

    def models(self) -> list[str]:
        return ["gloss-tiny", "org/other"]

    async def pause(self) -> None:
        self.state = "paused"

    async def resume(self) -> None:
        self.state = "online"

    def stop(self) -> None:
        self.stopped.set()

    def metrics(self) -> bytes:
        return b"glossd_steps_total 1.0\n"
