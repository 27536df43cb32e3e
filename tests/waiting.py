"""Wait, in an event loop, for something to become true."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], bool | Awaitable[bool]], seconds: float = 15.0) -> None:
    """Raises TimeoutError when it does not."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)
