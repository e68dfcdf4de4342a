"""Very many streams at once under a small limit of open files: everybody is answered, nobody gets another's text.

    python -m albatross_plugin.bench.soak_streams --streams 1000 --batch 64 --files 1024
    python -m albatross_plugin.bench.soak_streams --streams 1000 --batch 64 --files 1024 --queue 100 --max-tokens 256

Random weights; what each prompt must be answered is asked beforehand, one call at a time. With ``--queue`` the surplus, and exactly that,
must be turned away with 429; for that the answers must be so long that the first ends after the last call has come (``--max-tokens``).
Exit status 1 if an answer was wrong, cut, late or of another status.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from albatross_plugin.bench.checkpoints import SHAPES, checkpoint
from albatross_plugin.bench.host import Host
from albatross_plugin.bench.openai_client import Generation, allow_files, generate
from albatross_plugin.bench.report import Log, median, percentile
from albatross_plugin.bench.soak import ENVIRONMENT
from albatross_plugin.bench.soak_command import STOPPED, add_files, run_logged
from albatross_plugin.bench.soak_process import Holdings, at_rest, leaks

MODULE = "albatross_plugin.bench.soak_streams"
PATH = "/v1/completions"
PATIENCE_SECONDS = 600.0
HEADROOM = 256


def body(number: int, max_tokens: int, stream: bool) -> dict[str, Any]:
    """Prompts of different lengths, greedily answered, so that the text is the same whoever runs beside it."""
    prompt = f"Stream {number}: " + "sea " * number
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": stream}


async def measure(host: Host, options: argparse.Namespace, log: Log) -> tuple[list[str], dict[str, Any]]:
    wanted = []
    for number in range(options.prompts):
        wanted.append((await generate(host.endpoint, PATH, body(number, options.max_tokens, False))).text)
    log.line(f"{options.prompts} prompts, {len(set(wanted))} different texts of {options.max_tokens} tokens")
    start = await at_rest(host)
    log.line(f"before: {start.holdings}")
    most = start.holdings
    running = True

    async def watch() -> None:
        nonlocal most
        while running:
            now = Holdings.of(host.pid)
            most = Holdings(max(most.threads, now.threads), max(most.files, now.files), max(most.resident, now.resident))
            await asyncio.sleep(0.05)

    watcher = asyncio.create_task(watch())
    bodies = [body(number % options.prompts, options.max_tokens, True) for number in range(options.streams)]
    done = await asyncio.gather(*(generate(host.endpoint, PATH, each, PATIENCE_SECONDS) for each in bodies))
    running = False
    await watcher
    end = await at_rest(host, start)
    log.line(f"most while they ran: {most}")
    log.line(f"after: {end.holdings}")
    found = leaks(start, end, end, 0.0)
    found += [f"stream {i}: {each.status} {each.error}" for i, each in enumerate(done) if not each.ok and each.status != 429]
    found += [
        f"mixed text in stream {i}: {each.text!r}" for i, each in enumerate(done) if each.ok and each.text != wanted[i % options.prompts]
    ]
    statuses = Counter(each.status for each in done)
    surplus = max(0, options.streams - options.batch - options.queue)
    if surplus and min(each.ended for each in done if each.ok) < max(each.ended for each in done if each.status == 429):
        found.append("the first answer ended before the last call had come: try a larger --max-tokens")
    if (statuses[200], statuses[429]) != (options.streams - surplus, surplus):
        found.append(f"statuses {dict(statuses)}; {surplus} should have been turned away with 429")
    return found, {"statuses": dict(statuses), "surplus": surplus, "most": vars(most), "end": vars(end.holdings), **times(done)}


def times(done: Sequence[Generation]) -> dict[str, float]:
    """Seconds of the streams that were answered."""
    good = [each for each in done if each.ok and each.first_latency is not None]
    firsts = [each.first_latency or 0.0 for each in good]
    wall = max(each.ended for each in done) - min(each.started for each in done)
    return {"seconds": round(wall, 2), "first_p50": round(median(firsts), 2), "first_p99": round(percentile(firsts, 0.99), 2)}


async def soak(options: argparse.Namespace, log: Log) -> int:
    allow_files(options.streams + HEADROOM)
    variables = {**ENVIRONMENT, "ALBATROSS_MAX_QUEUE": str(options.queue)}
    log.line(f"server: at most {options.files} open files; " + " ".join(f"{name}={value}" for name, value in variables.items()))
    with Host(variables, files=options.files) as host:
        await host.switch(str(checkpoint(SHAPES["small"], options.cache)), f"albatross device=cpu batch={options.batch}")
        try:
            found, figures = await measure(host, options, log)
        except BaseException:
            log.line(host.log()[-3000:])
            raise
    for text in found[:20]:
        log.line(f"FOUND: {text}")
    if options.json:
        options.json.write_text(json.dumps({**figures, "found": found}, indent=2) + "\n", encoding="utf-8")
    counts = ", ".join(f"{count} with {status}" for status, count in sorted(figures["statuses"].items()))
    log.summary(
        f"{options.streams} streams at once on {options.batch} slots and {options.queue} places in the queue: {counts}; "
        f"first token after {figures['first_p50']} s (median) and {figures['first_p99']} s (99th percentile), all done after "
        f"{figures['seconds']} s. Open files of the server: at most {figures['most']['files']}, {figures['end']['files']} afterwards. "
        f"Wrong, cut or mixed: {len(found)}."
    )
    return 1 if found else 0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--streams", type=int, default=1000, help="streams at once (default: %(default)s)")
    add("--batch", type=int, default=64, help="slots (default: %(default)s)")
    add("--queue", type=int, default=4096, help="places in the queue (default: %(default)s)")
    add("--files", type=int, default=1024, help="files that the server may open (default: %(default)s)")
    add("--max-tokens", type=int, default=16, help="tokens of each answer (default: %(default)s)")
    add("--prompts", type=int, default=40, help="different prompts among them (default: %(default)s)")
    add_files(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_logged(MODULE, arguments, parse_arguments(arguments), soak, (*STOPPED, OSError))


if __name__ == "__main__":
    sys.exit(main())
