"""Who is banned neither calls nor is called; who sends junk again and again is refused, longer each time."""

import pytest

from swarm.errors import DialFailed, LinkBroken
from swarm.ids import PeerId
from swarm.net.memory import MemoryNetwork
from swarm.net.transport import Stream
from swarm.trust import door as module
from swarm.trust.bans import Ban, Bans
from swarm.trust.door import FORGIVEN_S, JUNK_ALLOWED, REFUSED_MAX_S, REFUSED_S, Door
from tests.waiting import until

ME, BAD, GOOD = PeerId("me11111111"), PeerId("bad1111111"), PeerId("good111111")


async def echo(stream: Stream) -> None:
    while True:
        await stream.write(await stream.read_exactly(1))


class House:
    def __init__(self) -> None:
        self.now = 1000.0
        self.network = MemoryNetwork()
        self.bans = Bans()
        self.callers = {name: self.network.node(name) for name in (BAD, GOOD)}
        self.door = Door(self.network.node(ME), self.bans, lambda: self.now)

    async def lets_in(self, name: PeerId) -> bool:
        stream = await self.callers[name].open(ME, "/x")
        try:
            await stream.write(b"!")
            return await stream.read_exactly(1) == b"!"
        except LinkBroken:
            return False
        finally:
            await stream.close()


@pytest.fixture
async def house() -> House:
    made = House()
    await made.door.serve("/x", echo)
    for caller in made.callers.values():
        await caller.serve("/x", echo)
    return made


async def test_a_ban_works_both_ways_and_ends_what_is_open(house: House) -> None:
    stream = await house.callers[BAD].open(ME, "/x")
    await stream.write(b"a")
    assert await stream.read_exactly(1) == b"a"
    house.bans.add(Ban(peer=BAD, since=0.0))
    await house.door.cut(BAD)
    with pytest.raises(LinkBroken):
        await stream.read_exactly(1)
    assert not await house.lets_in(BAD)
    with pytest.raises(DialFailed, match="unban"):
        await house.door.open(BAD, "/x")
    assert await house.lets_in(GOOD)
    house.bans.remove(BAD)
    assert await house.lets_in(BAD)
    await (await house.door.open(BAD, "/x")).close()


async def test_junk_is_borne_a_few_times_then_refused_twice_as_long_each_time(house: House) -> None:
    for _ in range(JUNK_ALLOWED - 1):
        await house.door.sent_junk(BAD)
    assert await house.lets_in(BAD)
    refused_s = REFUSED_S
    for _ in range(12):
        await house.door.sent_junk(BAD)
        house.now += refused_s - 1
        assert not await house.lets_in(BAD)
        house.now += 2
        assert await house.lets_in(BAD)
        refused_s = min(2 * refused_s, REFUSED_MAX_S)
    assert await house.lets_in(GOOD)
    house.now += FORGIVEN_S + 1
    await house.door.sent_junk(BAD)
    assert await house.lets_in(BAD)


async def test_the_junk_of_ever_new_names_takes_no_memory(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 10)
    for number in range(100):
        await house.door.sent_junk(PeerId(f"sybil{number}"))
    assert len(house.door._junk) == 10


async def test_streams_that_ended_are_forgotten(house: House) -> None:
    for _ in range(5):
        assert await house.lets_in(GOOD)
    await until(lambda: not house.door._open)
