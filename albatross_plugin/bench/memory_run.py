"""Memory of the engine on the CPU: the weights once however many workers, one state per slot, and nothing that grows.

    python -m albatross_plugin.bench.memory_run --log docs/benchmarks/memory-run.log

Each server is a process of its own; its resident memory is read from outside. Three parts: what a load adds with one worker and with
two, what 256 more slots add, and the level over 1,000 requests. A slot's state has ``layers * (2 * width + width / 64 * 64 * 64)``
float32 numbers, and its penalties take 9 bytes for each token id.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from albatross_plugin.bench.checkpoints import SHAPES, ModelShape, checkpoint
from albatross_plugin.bench.cpu_host_comparison import environment
from albatross_plugin.bench.host import Host
from albatross_plugin.bench.openai_client import Generation, generate
from albatross_plugin.bench.report import Log, table

MODULE = "albatross_plugin.bench.memory_run"
MORE_SLOTS = 256
MB = 1e6
REST_SECONDS = 0.5
# Part of the run after which the level is taken as reached: allocators keep what the first waves of work needed.
WARM_PART = 0.2


class Failed(RuntimeError):
    """A request failed; the figures would be about something else."""


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM now, in bytes. Needs psutil where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        import psutil  # type: ignore[import-untyped, unused-ignore]

        return int(psutil.Process(pid).memory_info().rss)
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def weight_bytes(path: Path) -> int:
    """Size of a checkpoint's numbers in float32; the file holds bfloat16 and little else."""
    return 2 * path.stat().st_size


async def ask(host: Host, number: int, max_tokens: int) -> Generation:
    """One request of a length of its own, streamed or not."""
    body = {"prompt": f"Request {number}: " + "wave " * (number % 40), "max_tokens": max_tokens, "stream": number % 3 > 0}
    done = await generate(host.endpoint, "/v1/completions", body, 300)
    if not done.ok:
        raise Failed(f"request {number}: {done.error}")
    return done


async def loaded_bytes(model: Path, strategy: str, threads: int) -> tuple[int, int]:
    """(before, after): resident bytes of a server that has torch loaded, and with this model, each slot used once."""
    small = checkpoint(SHAPES["small"], model.parent)
    with Host(environment(threads)) as host:
        # Loading and unloading a small model first takes torch itself out of the difference.
        await host.switch(str(small), "albatross device=cpu batch=1")
        await ask(host, 0, 2)
        await host.switch("", "")
        await asyncio.sleep(REST_SECONDS)
        before = resident_bytes(host.pid)
        await host.switch(str(model), strategy)
        await ask(host, 1, 2)
        await asyncio.sleep(REST_SECONDS)
        return before, resident_bytes(host.pid)


async def measure_load(shape: ModelShape, model: Path, options: argparse.Namespace, log: Log) -> str:
    """Loads with one and two workers, and with more slots, beside what the shape says; in words for the summary."""
    cases = [
        ("1 worker, 16 slots", "albatross device=cpu workers=1 batch=16", 17),
        ("2 workers, 16 slots each", "albatross device=cpu workers=2 batch=16", 34),
        (f"1 worker, {16 + MORE_SLOTS} slots", f"albatross device=cpu workers=1 batch={16 + MORE_SLOTS}", 17 + MORE_SLOTS),
    ]
    weights, slot = weight_bytes(model), shape.slot_bytes
    state = 4 * shape.state_floats
    log.line(f"weights in float32: {weights / MB:.0f} MB; a slot: {slot} bytes, of which its state {state}")
    log.line("a worker has one row more than slots")
    rows, grown = [], []
    for name, strategy, rows_held in cases:
        before, after = await loaded_bytes(model, strategy, options.threads)
        grown.append(after - before)
        expected = weights + rows_held * slot
        rows.append((name, f"{before / MB:.0f}", f"{after / MB:.0f}", f"{(after - before) / MB:.0f}", f"{expected / MB:.0f}"))
        log.line(f"{name}: strategy {strategy!r}, resident {before} to {after} bytes")
    figures = table(("load of the 0.1B shape, MB", "before", "after", "difference", "weights + slots"), rows)
    return (
        f"{figures}\n\n"
        f"- A slot, measured: {(grown[2] - grown[0]) / MORE_SLOTS / MB:.3f} MB; by the formula: {slot / MB:.3f} MB.\n"
        f"- A second worker: {(grown[1] - grown[0]) / MB:+.0f} MB, of which {17 * slot / MB:.0f} MB are its slots.\n"
    )


async def measure_level(options: argparse.Namespace, log: Log) -> tuple[float, float]:
    """Resident memory in MB after many requests to a small model with two workers, and its growth after the warm part."""
    strategy = "albatross device=cpu workers=2 batch=8"
    model = checkpoint(SHAPES["small"], options.cache)
    levels: list[tuple[int, int]] = []
    with Host(environment(options.threads)) as host:
        await host.switch(str(model), strategy)
        log.line(f"{options.requests} requests, 16 at a time, small model ({SHAPES['small']}), strategy {strategy!r}")
        numbers = iter(range(options.requests))
        step = max(options.requests // 20, 1)

        async def client() -> None:
            for number in numbers:
                await ask(host, number, 16)
                if (number + 1) % step == 0:
                    levels.append((number + 1, resident_bytes(host.pid)))
                    log.line(f"after {number + 1:5} requests: {levels[-1][1] / MB:.1f} MB")

        await asyncio.gather(*(client() for _ in range(16)))
    warm = next(level for count, level in levels if count >= WARM_PART * options.requests)
    return levels[-1][1] / MB, (levels[-1][1] - warm) / MB


async def run(options: argparse.Namespace, log: Log) -> int:
    variables = " ".join(f"{name}={value}" for name, value in environment(options.threads).items())
    log.line(f"server: {variables}")
    load = ""
    if not options.level_only:
        shape = SHAPES["0.1b"]
        load = await measure_load(shape, checkpoint(shape, options.cache), options, log)
    level, growth = await measure_level(options, log)
    log.summary(
        f"{load}- {options.requests} requests to the small model: from {WARM_PART:.0%} of them to the end, "
        f"resident memory changed by {growth:+.1f} MB, to {level:.0f} MB."
    )
    return 0 if growth <= options.allow else 2


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--requests", type=int, default=1000, help="requests of the long run (default: %(default)s)")
    add("--threads", type=int, default=1, help="threads of one operator (default: %(default)s)")
    add("--allow", type=float, default=8.0, help="growth in MB that is still flat; more is exit status 2 (default: %(default)s)")
    add("--level-only", action="store_true", help="only the long run")
    add("--cache", type=Path, help="folder for the checkpoints (default: the user's cache folder)")
    add("--log", type=Path, help="write the log to this file too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    with Log(options.log) as log:
        more = ["--level-only"] if options.level_only else []
        log.head(MODULE, [f"--requests {options.requests}", f"--threads {options.threads}", *more])
        try:
            return asyncio.run(run(options, log))
        except Failed as error:
            log.line(f"stopped: {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
