"""All manners of clients at once for minutes, and what the server has lost at the end: nothing, if all is well.

    python -m albatross_plugin.bench.soak --minutes 5
    python -m albatross_plugin.bench.soak --requests 10000 --mix aborts --warm 1000
    PYTHONPATH=tests python -m albatross_plugin.bench.soak --minutes 5 --faults

It starts a stub host and makes its models itself: rings of words, so that a text with another's words is seen. Clients stream, ask for
whole answers, several choices, tools and batches, send bad and half requests, leave, never read; now and then more come than the queue
holds, or the model is switched. At rest before, after a warm part and at the end, the server's threads, descriptors and memory are read.
Exit status 1 if anything leaked, an answer was wrong or a client was left waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from albatross_plugin.bench.chosen_executor import strategy
from albatross_plugin.bench.host import Host
from albatross_plugin.bench.report import Log, table
from albatross_plugin.bench.soak_batches import BATCHES
from albatross_plugin.bench.soak_clients import GOOD, LEAVING, OTHERS, Scene, flood, guarded
from albatross_plugin.bench.soak_command import STOPPED, add_files, run_logged
from albatross_plugin.bench.soak_faults import CONFIG, FAULTY, OPTIONS, Faults
from albatross_plugin.bench.soak_models import RingModel, ring_model
from albatross_plugin.bench.soak_process import Holdings, Level, at_rest, leaks

MODULE = "albatross_plugin.bench.soak"
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "ALBATROSS_THREADS": "1"}
SERVER = "albatross_plugin.bench.measured_host"
WARM_PART = 0.25
# What fills caches: a warm part of so long, or of so many requests. After a shorter one, memory may grow by so much in any case.
WARM_SECONDS, WARM_REQUESTS, SHORT_SLACK = 60.0, 1000, 16_000_000
PROGRESS_SECONDS = 10.0
SWITCH_SECONDS, FLOOD_SECONDS, FAULT_SECONDS, LOOK_SECONDS = 20.0, 15.0, 1.0, 0.5
SLICE_SECONDS = 0.2
MOST_TOLD = 20
MIXES = {"all": [*GOOD, *LEAVING, *OTHERS, *BATCHES], "aborts": [*GOOD, *LEAVING]}


class Soak:
    """One run on one host."""

    def __init__(self, host: Host, models: Sequence[RingModel], options: argparse.Namespace, log: Log) -> None:
        self.host = host
        self.models = models
        self.options = options
        self.log = log
        self.scene = Scene(
            host.endpoint, models[0], options.batch + options.queue, random.Random(options.seed), faulty=bool(options.faults)
        )
        self.faults = Faults(options.faults, self.scene, host, self.load) if options.faults else None
        self._loading = asyncio.Lock()
        self._began = 0.0

    async def load(self, model: RingModel | None = None) -> None:
        """Switch to a model, or load the current one again; what runs meanwhile may be turned away."""
        options, scene = self.options, self.scene
        words = f"albatross device=cpu batch={options.batch}"
        if options.faults:
            words = strategy(options.faults, options.batch, OPTIONS, **CONFIG)
        async with self._loading:
            scene.switching = True
            try:
                target = model or scene.model
                await self.host.switch(str(target.path), words)
                scene.model = target
                scene.switches += 1
            finally:
                scene.switching = False

    async def run(self) -> tuple[list[str], dict[str, Any]]:
        """Warm up, rest, go on, rest; what went wrong in words, and the figures."""
        options, scene, loop = self.options, self.scene, asyncio.get_running_loop()
        self._began = loop.time()
        await self.load()
        start = await self._rest("start")
        warm = options.warm or int(options.requests * WARM_PART)
        began = loop.time()
        await self._phase(60 * options.minutes * WARM_PART, warm)
        slack = 0 if loop.time() - began >= WARM_SECONDS or warm >= WARM_REQUESTS else SHORT_SLACK
        before = await self._rest("warm", start)
        await self._phase(60 * options.minutes * (1 - WARM_PART), options.requests)
        after = await self._rest("end", start)
        figures = {
            "requests": scene.done,
            "seconds": round(loop.time() - self._began, 1),
            "outcomes": dict(scene.outcomes.most_common()),
            "loads": scene.switches,
            "start": asdict(start.holdings),
            "warm": asdict(before.holdings),
            "end": asdict(after.holdings),
            "slots_in_use": after.engine["slots"]["active"],
            "queued": after.engine["queue"]["length"],
            "unfinished": after.unfinished,
            "slack": slack,
            "drift": round(after.holdings.resident / before.holdings.resident - 1, 4),
        }
        if self.faults is not None:
            figures |= {"faults": self.faults.injected, "reloads": self.faults.mended, "longest_error_s": round(scene.longest_error, 2)}
        return leaks(start, before, after, options.drift, slack) + scene.problems, figures

    async def _rest(self, name: str, start: Level | None = None) -> Level:
        if self.faults is not None:
            await self.faults.mend()
        level = await at_rest(self.host, start)
        self._say(f"{name}: {level.holdings}; {level.engine['slots']['active']} slots in use, {level.unfinished} unfinished")
        return level

    async def _phase(self, seconds: float, requests: int) -> None:
        """Clients without a pause, for so many seconds, or until so many requests have been made in all."""
        scene, options, loop = self.scene, self.options, asyncio.get_running_loop()
        end = loop.time() + seconds
        choices, weights = [client for _, client in MIXES[options.mix]], [weight for weight, _ in MIXES[options.mix]]

        def going() -> bool:
            return scene.asked < requests if requests else loop.time() < end

        async def client() -> None:
            while going():
                if scene.switching or scene.down:
                    # Without a model, all that clients could do is to collect refusals.
                    await asyncio.sleep(SLICE_SECONDS)
                    continue
                scene.asked += 1
                await guarded(scene, scene.chance.choices(choices, weights)[0](scene))

        async def every(period: float, action: Callable[[], Awaitable[None]]) -> None:
            due = loop.time() + period
            while going():
                await asyncio.sleep(SLICE_SECONDS)
                if loop.time() >= due and going():
                    await action()
                    due = loop.time() + period

        work = [client() for _ in range(options.clients)]
        work.append(every(PROGRESS_SECONDS, self._progress))
        if options.mix == "all":
            work += [every(SWITCH_SECONDS * options.pace, self._switch), every(FLOOD_SECONDS * options.pace, self._flood)]
        if self.faults is not None:
            work += [every(FAULT_SECONDS * options.pace, self._fault), every(LOOK_SECONDS, self.faults.mend)]
        await asyncio.gather(*work)

    async def _switch(self) -> None:
        if not self.scene.down:
            await self.load(next(model for model in self.models if model is not self.scene.model))

    async def _flood(self) -> None:
        if not (self.scene.switching or self.scene.down):
            await flood(self.scene)

    async def _fault(self) -> None:
        if self.faults is not None and not (self.scene.switching or self.scene.down):
            await guarded(self.scene, self.faults.inject())

    async def _progress(self) -> None:
        scene = self.scene
        said = ", ".join(f"{count} {name}" for name, count in scene.outcomes.most_common())
        self._say(f"{Holdings.of(self.host.pid)}; {said}; {len(scene.problems)} problems")

    def _say(self, text: str) -> None:
        self.log.line(f"{asyncio.get_running_loop().time() - self._began:7.1f} s  {text}")


async def soak(options: argparse.Namespace, log: Log) -> int:
    variables = {**ENVIRONMENT, "ALBATROSS_MAX_QUEUE": str(options.queue)}
    log.line("server: " + " ".join(f"{name}={value}" for name, value in variables.items()))
    with tempfile.TemporaryDirectory(prefix="albatross-soak-") as folder:
        models = [ring_model(Path(folder), number) for number in range(2 if options.mix == "all" else 1)]
        with Host(variables, module=SERVER if options.faults else None) as host:
            run = Soak(host, models, options, log)
            try:
                found, figures = await run.run()
            except BaseException:
                log.line(host.log()[-3000:])
                raise
    if options.json:
        options.json.write_text(json.dumps({**figures, "found": found}, indent=2) + "\n", encoding="utf-8")
    for text in found[:MOST_TOLD]:
        log.line(f"FOUND: {text}")
    log.summary(summary(figures, found))
    return 1 if found else 0


def summary(figures: dict[str, Any], found: Sequence[str]) -> str:
    """The end of the log, in Markdown."""
    names = {"threads": "threads", "files": "descriptors", "resident": "resident memory, MB"}
    rows = [
        (
            text,
            *(f"{figures[part][name] / (1e6 if name == 'resident' else 1):.{name == 'resident':d}f}" for part in ("start", "warm", "end")),
        )
        for name, text in names.items()
    ]
    outcomes = ", ".join(f"{count} {name}" for name, count in figures["outcomes"].items())
    lines = [
        f"{figures['requests']} requests in {figures['seconds']:.0f} s, {figures['loads']} loads: {outcomes}.",
        "",
        table(("the server", "start", "warm", "end"), rows),
        "",
        f"- Slots in use at the end: {figures['slots_in_use']}; queued: {figures['queued']}; unfinished: {figures['unfinished']}.",
        f"- Resident memory from the warm part to the end: {figures['drift']:+.2%}."
        + (f" Too short a warm part to judge it by that: {figures['slack'] / 1e6:.0f} MB are allowed." if figures["slack"] else ""),
    ]
    if "faults" in figures:
        lines.append(
            f"- {figures['faults']} faults on purpose, after which the model was loaded again {figures['reloads']} times; "
            f"the longest silence before an error: {figures['longest_error_s']} s."
        )
    return "\n".join([*lines, f"- Leaks and wrong answers: {len(found)}."])


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="length of the run, warm part included (default: %(default)s)")
    add("--requests", type=int, default=0, help="so many requests in place of a time")
    add("--warm", type=int, default=0, help="requests of the warm part (default: a quarter)")
    add(
        "--mix",
        choices=sorted(MIXES),
        default="all",
        help="aborts: no rude client but those who leave, a third of all (default: %(default)s)",
    )
    add("--clients", type=int, default=24, help="clients at a time (default: %(default)s)")
    add("--batch", type=int, default=16, help="slots (default: %(default)s)")
    add("--queue", type=int, default=64, help="places in the queue (default: %(default)s)")
    add(
        "--faults",
        nargs="?",
        const=FAULTY,
        help="faults on purpose, by the executor of this name (default: %(const)s, with PYTHONPATH=tests)",
    )
    add("--pace", type=float, default=1.0, help="factor on the time between two switches, floods and faults (default: %(default)s)")
    add("--drift", type=float, default=0.02, help="part by which resident memory may grow after the warm part (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the clients' choices (default: %(default)s)")
    add_files(parser, cache=False)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_logged(MODULE, arguments, parse_arguments(arguments), soak, (*STOPPED, ModuleNotFoundError))


if __name__ == "__main__":
    sys.exit(main())
