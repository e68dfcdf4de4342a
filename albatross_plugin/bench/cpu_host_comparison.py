"""This engine against the host's own locked path, both over HTTP on the CPU, in pairs that alternate.

    python -m albatross_plugin.bench.cpu_host_comparison --log docs/benchmarks/cpu-host-comparison.log

Two servers of the stub host stand side by side, one with ``albatross device=cpu``, one with the ``rwkv`` package (its JIT on) behind the
host's lock. Only one works at a time. Both read the same random weights, use as many threads, the same sampling, and answer the same
prompts with the same number of tokens. A pair is: 16 requests at once to one, then to the other; then one request alone to each.
Exit status 0 if every wanted figure was reached, 2 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albatross_plugin.bench.checkpoints import SHAPES, checkpoint
from albatross_plugin.bench.host import Host
from albatross_plugin.bench.openai_client import Generation, generate
from albatross_plugin.bench.report import Log, median, table

MODULE = "albatross_plugin.bench.cpu_host_comparison"
ENGINE, LOCKED = "albatross", "rwkv"
# Neither path refuses any of these; no penalties.
SAMPLING = {"temperature": 1.0, "top_p": 0.5, "top_k": 0, "presence_penalty": 0, "frequency_penalty": 0}
WORDS = ("sea", "wind", "wing", "salt", "rope", "mast", "gull", "foam", "reef", "tide", "buoy", "keel", "hull", "oar", "deck", "fog")
REST_SECONDS = 0.5


class Incomplete(RuntimeError):
    """An answer was cut or failed; its figures would be about something else."""


@dataclass
class Round:
    """What one burst gave. Seconds, and tokens a second from the first start to the last end.

    ``cpu_per_token``: seconds of processor time of the server for each answered token, prompts included. It shows whether a
    slow run did more work or had less of the machine.
    """

    rate: float
    first_latencies: list[float]
    prompt_tokens: int
    cpu_per_token: float | None = None

    @property
    def last_over_first(self) -> float:
        """The longest wait for a first token over the shortest."""
        return max(self.first_latencies) / min(self.first_latencies)


@dataclass
class Side:
    """One of the two paths, and what was measured on it."""

    name: str
    strategy: str
    host: Host
    bursts: list[Round] = field(default_factory=list)
    singles: list[Round] = field(default_factory=list)


def prompt(number: int) -> str:
    """About twenty tokens, different for each number from the first word on."""
    return f"{WORDS[number % len(WORDS)]} {number}: tell me what the {WORDS[(number + 5) % len(WORDS)]} does to the ship, and why."


def summarize(done: Sequence[Generation], max_tokens: int) -> Round:
    """Raises Incomplete unless every answer has exactly ``max_tokens`` tokens, by the server's count."""
    for each in done:
        counted = each.usage["completion_tokens"] if each.usage else None
        if not each.ok or each.first is None or counted != max_tokens:
            raise Incomplete(f"{each.error or each.finish_reason}: {counted} of {max_tokens} tokens")
    wall = max(each.ended for each in done) - min(each.started for each in done)
    latencies = [each.first_latency for each in done if each.first_latency is not None]
    prompts = sum(each.usage["prompt_tokens"] for each in done if each.usage)
    return Round(len(done) * max_tokens / wall, latencies, prompts)


async def burst(host: Host, count: int, max_tokens: int) -> Round:
    """``count`` different prompts at the same moment."""
    bodies: list[dict[str, Any]] = [
        {"prompt": prompt(number), "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}, **SAMPLING}
        for number in range(count)
    ]
    before = host.cpu_seconds()
    done = await asyncio.gather(*(generate(host.endpoint, "/v1/completions", body, 600) for body in bodies))
    after = host.cpu_seconds()
    result = summarize(done, max_tokens)
    if before is not None and after is not None:
        result.cpu_per_token = (after - before) / (count * max_tokens)
    return result


async def run_pairs(sides: Sequence[Side], options: argparse.Namespace, log: Log) -> None:
    """Alternate between the sides, which take turns at going first."""
    for side in sides:
        # Compilation and first allocations belong to no pair.
        await burst(side.host, options.requests, 4)
        await burst(side.host, 1, 8)
    for pair in range(1, options.pairs + 1):
        order = list(sides) if pair % 2 else list(sides)[::-1]
        for side in order:
            await asyncio.sleep(REST_SECONDS)
            side.bursts.append(await burst(side.host, options.requests, options.max_tokens))
            log.line(_line(pair, side.name, side.bursts[-1]))
        for side in order:
            await asyncio.sleep(REST_SECONDS)
            side.singles.append(await burst(side.host, 1, options.max_tokens))
            log.line(_line(pair, side.name, side.singles[-1]))


def _line(pair: int, name: str, one: Round) -> str:
    low, high = 1e3 * min(one.first_latencies), 1e3 * max(one.first_latencies)
    how = "alone" if len(one.first_latencies) == 1 else "at once"
    return (
        f"pair {pair}  {name:9}  {len(one.first_latencies):2} {how:7}  {one.rate:7.2f} tok/s  "
        f"first token {low:7.1f} to {high:7.1f} ms ({one.last_over_first:.2f})"
        + (f"  processor {1e3 * one.cpu_per_token:6.2f} ms/token" if one.cpu_per_token is not None else "")
    )


def results(engine: Side, locked: Side) -> list[tuple[str, float, float, float, str]]:
    """(what, engine, locked, ratio, wanted) for each figure: medians, and the median of the ratios within pairs.

    What slows the machine for a while slows both runs of a pair, so ratios within pairs tell more than a ratio of medians.
    """
    figures: list[tuple[str, str, Callable[[Round], float], str]] = [
        ("at once, tokens/s", "bursts", lambda one: one.rate, "at least 4"),
        ("one alone, tokens/s", "singles", lambda one: one.rate, "at least 0.9"),
        ("longest wait for a first token, s", "bursts", lambda one: max(one.first_latencies), ""),
    ]
    if all(one.cpu_per_token for one in engine.bursts + locked.bursts):
        figures.append(("at once, processor time per token, ms", "bursts", lambda one: 1e3 * (one.cpu_per_token or 0), ""))
    found = []
    for what, which, value, wanted in figures:
        ours, theirs = ([value(one) for one in getattr(side, which)] for side in (engine, locked))
        found.append((what, median(ours), median(theirs), median(a / b for a, b in zip(ours, theirs, strict=True)), wanted))
    return found


def fairness(engine: Side) -> float:
    """Median over the bursts of the last first token's wait over the first one's."""
    return median(one.last_over_first for one in engine.bursts)


def environment(threads: int) -> dict[str, str]:
    """What both servers run under."""
    return {
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "ALBATROSS_THREADS": str(threads),
        "RWKV_JIT_ON": "1",
    }


async def compare(options: argparse.Namespace, log: Log) -> int:
    shape = SHAPES[options.shape]
    model = str(checkpoint(shape, options.cache))
    variables = environment(options.threads)
    log.line(f"model: {options.shape} ({shape}), random weights, seed 0; float32 on both sides")
    log.line("both servers: " + " ".join(f"{name}={value}" for name, value in variables.items()))
    log.line(f"load: {options.requests} requests, {options.max_tokens} tokens each; " + ", ".join(f"{k} {v}" for k, v in SAMPLING.items()))
    with Host(variables) as first, Host(variables) as second:
        engine = Side(ENGINE, f"albatross device=cpu batch={options.requests}", first)
        locked = Side(LOCKED, "cpu fp32", second)
        for side in (engine, locked):
            log.line(f"{side.name}: strategy {side.strategy!r}")
            await side.host.switch(model, side.strategy)
        await run_pairs((engine, locked), options, log)
    figures = results(engine, locked)
    head = (f"{options.requests} requests", ENGINE, LOCKED, "ratio", "wanted")
    rows = [(what, f"{a:.2f}", f"{b:.2f}", f"{ratio:.2f}", wanted) for what, a, b, ratio, wanted in figures]
    even = fairness(engine)
    rows.append((f"first token of the last request over that of the first, {ENGINE}", f"{even:.2f}", "", "", "at most 2"))
    log.summary(f"Medians of {options.pairs} pairs; the ratio is the median of the ratios within pairs:\n\n{table(head, rows)}")
    return 0 if figures[0][3] >= 4 and figures[1][3] >= 0.9 and even <= 2 else 2


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--pairs", type=int, default=5, help="measured pairs (default: %(default)s)")
    add("--requests", type=int, default=16, help="requests at once (default: %(default)s)")
    add("--max-tokens", type=int, default=64, help="tokens of each answer (default: %(default)s)")
    add("--threads", type=int, default=1, help="threads of one operator, on both sides (default: %(default)s)")
    add("--shape", choices=sorted(SHAPES), default="0.1b", help="the model's sizes (default: %(default)s)")
    add("--cache", type=Path, help="folder for the checkpoint (default: the user's cache folder)")
    add("--log", type=Path, help="write the log to this file too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    with Log(options.log) as log:
        shown = [f"--pairs {options.pairs}", f"--requests {options.requests}", f"--max-tokens {options.max_tokens}"]
        log.head(MODULE, [*shown, f"--threads {options.threads}", f"--shape {options.shape}"])
        try:
            return asyncio.run(compare(options, log))
        except Incomplete as error:
            log.line(f"stopped: an answer was not whole: {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
