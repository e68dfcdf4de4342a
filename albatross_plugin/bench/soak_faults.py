"""Faults on purpose during a soak: requests whose steps fail, and a watch that loads the model again when a worker has died of one."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

from albatross_plugin.bench.host import Host
from albatross_plugin.bench.soak_clients import COMPLETIONS, GREEDY, Scene, ask, judge

FAULTY = "faults.executor:FaultyExecutor"
# A step that hangs is given up after two seconds; the thread comes back later and ends.
OPTIONS, CONFIG = {"hang_seconds": 6}, {"step_timeout": 2.0}
WEIGHTS = {"raise_launch": 4, "raise_collect": 4, "memory": 3, "not_finite": 6, "slow": 6, "hang": 1, "die": 2, "lose": 1}
DEADLINE_SECONDS = 5.0


class Faults:
    """``executor`` is "module:Class"; the module's function ``seed(kind, token)`` says which seed asks for a fault."""

    def __init__(self, executor: str, scene: Scene, host: Host, reload: Callable[[], Awaitable[None]]) -> None:
        self._seed: Callable[[str, int], int] = importlib.import_module(executor.partition(":")[0]).seed
        self._scene = scene
        self._host = host
        self._reload = reload
        self.injected = 0
        self.mended = 0

    async def inject(self) -> None:
        """One request with a fault in one of its first steps; it must end with an error, but for a step that is only slow."""
        scene = self._scene
        kind = scene.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        token = scene.chance.randrange(4)
        prompt, ring, start = scene.prompt()
        body = {"prompt": prompt, "max_tokens": 12, "stream": scene.chance.random() < 0.5, **GREEDY, "seed": self._seed(kind, token)}
        disturbed = scene.switching or scene.down
        model, switches = scene.model, scene.switches
        reply = await ask(scene, COMPLETIONS, body)
        disturbed = disturbed or scene.switching or scene.down or scene.switches != switches
        outcome = judge(scene, reply, disturbed)
        scene.outcomes[outcome] += 1
        self.injected += 1
        if outcome == "unexpected" or (outcome == "answered" and kind != "slow"):
            scene.problem(f"a request with the fault {kind} ended with {outcome}: {reply.status} {reply.error}")
        if outcome == "answered" and not disturbed and reply.texts[0] != model.text(ring, start, 12):
            scene.problem(f"mixed text beside a slow step: {reply.texts[0]!r}")

    async def mend(self) -> None:
        """Where the engine is down, see that a call is refused in words, and load the model again."""
        if self._scene.switching:
            return
        status: dict[str, Any] = (await self._host.status()).get("albatross", {})
        if status.get("phase") != "down" or self._scene.switching:
            return
        self._scene.down = True
        try:
            began = asyncio.get_running_loop().time()
            reply = await ask(self._scene, COMPLETIONS, {"prompt": "a", "max_tokens": 1})
            words = str((reply.error or {}).get("message"))
            if reply.status != 503 or "must be loaded again" not in words or asyncio.get_running_loop().time() - began > DEADLINE_SECONDS:
                self._scene.problem(f"the engine is down, and a call got {reply.status} {words!r}")
            await self._reload()
            self.mended += 1
        finally:
            self._scene.down = False
