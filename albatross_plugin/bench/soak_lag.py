"""How late the server's event loop is while long prompts are tokenised and streams run.

    python -m albatross_plugin.bench.soak_lag --streams 32 --prompts 20

A task on the server's own loop sleeps 5 ms again and again; what it oversleeps is the lag that every other call meets. Prompts of 1 MB come
one after the other; each is left as soon as it has been admitted, so that the time is that of reading and tokenising. Exit status 2 if the
99th percentile is above ``--limit``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from albatross_plugin.bench.checkpoints import SHAPES, checkpoint
from albatross_plugin.bench.host import Host
from albatross_plugin.bench.openai_client import HttpError, call, generate, read_head, send
from albatross_plugin.bench.report import Log, median, percentile, table
from albatross_plugin.bench.soak import ENVIRONMENT
from albatross_plugin.bench.soak_command import add_files, run_logged

MODULE = "albatross_plugin.bench.soak_lag"
PATH = "/v1/completions"
WORDS = "The albatross follows the ship for days, 海は広い, and rests on the wind; 42 wings of it. "
REST_SECONDS = 1.0


async def lag(host: Host) -> list[float]:
    """Milliseconds, since the last call."""
    answer: dict[str, list[float]] = (await call(host.endpoint, "GET", "/bench/loop")).json()
    return answer["late_ms"]


async def long_prompt(host: Host, prompt: str) -> None:
    """Send it, and leave when it has been admitted. Raises HttpError if it was not."""
    body = {"prompt": prompt, "stream": True, "max_tokens": 1}
    reader, writer = await send(host.endpoint, "POST", PATH, body)
    try:
        status, _ = await asyncio.wait_for(read_head(reader), 60)
        if status != 200:
            raise HttpError(f"a prompt of {len(prompt)} characters got {status}")
    finally:
        writer.transport.abort()


async def measure(host: Host, options: argparse.Namespace) -> dict[str, list[float]]:
    """Lags with nothing to do, with the streams alone, and with the prompts beside them."""
    text = WORDS * (1 + options.bytes // len(WORDS.encode()))
    prompt = text.encode()[: options.bytes].decode(errors="ignore")
    found: dict[str, list[float]] = {}
    await lag(host)
    await asyncio.sleep(REST_SECONDS)
    found["idle"] = await lag(host)
    body = {"prompt": "a", "max_tokens": 100_000, "stream": True, "ignore_eos": True}
    streams = [asyncio.create_task(generate(host.endpoint, PATH, body, 3600)) for _ in range(options.streams)]
    await asyncio.sleep(REST_SECONDS)
    await lag(host)
    await asyncio.sleep(2 * REST_SECONDS)
    found["streams"] = await lag(host)
    for _ in range(options.prompts):
        await long_prompt(host, prompt)
    found["streams and prompts"] = await lag(host)
    broken = [each.result().error for each in streams if each.done()]
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    if broken:
        raise HttpError(f"a stream ended: {broken[0]}")
    return found


async def run(options: argparse.Namespace, log: Log) -> int:
    log.line("server: " + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()))
    with Host(ENVIRONMENT, module="albatross_plugin.bench.measured_host") as host:
        model = str(checkpoint(SHAPES["small"], options.cache))
        await host.switch(model, f"albatross device=cpu batch={options.streams + 1}")
        found = await measure(host, options)
    figures: dict[str, Any] = {}
    rows = []
    for name, late in found.items():
        figures[name] = {"looks": len(late), "p50": median(late), "p99": percentile(late, 0.99), "most": max(late)}
        rows.append((name, str(len(late)), *(f"{figures[name][part]:.1f}" for part in ("p50", "p99", "most"))))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    log.summary(table((f"{options.streams} streams, prompts of {options.bytes} bytes; lag in ms", "looks", "median", "99%", "most"), rows))
    return 0 if figures["streams and prompts"]["p99"] <= options.limit else 2


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--streams", type=int, default=32, help="streams that run meanwhile (default: %(default)s)")
    add("--prompts", type=int, default=20, help="long prompts, one after the other (default: %(default)s)")
    add("--bytes", type=int, default=1_000_000, help="length of each (default: %(default)s)")
    add("--limit", type=float, default=50.0, help="milliseconds that the 99th percentile may reach (default: %(default)s)")
    add_files(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_logged(MODULE, arguments, parse_arguments(arguments), run)


if __name__ == "__main__":
    sys.exit(main())
