"""Tokens per second of the engine itself: requests into its queue, tokens out to a reader, without HTTP.

    python -m albatross_plugin.bench.engine_benchmark --model FILE.pth --batch 1,32,128,320,960 --new-tokens 128 --prompt-tokens 16
    python -m albatross_plugin.bench.engine_benchmark --model FILE.pth --prefill 4096 --prefill 32x32
    python -m albatross_plugin.bench.engine_benchmark --model FILE.pth --ttft
    python -m albatross_plugin.bench.engine_benchmark --model FILE.pth --workers 2 --batch 320,960
    python -m albatross_plugin.bench.engine_benchmark --executor instant --batch 320,960

Decoding: for each batch, as many requests as slots of all workers, submitted at the same moment, each to its full length. ``tok/s``
counts all tokens from the submission to the last one, prompts included in the time; ``steady`` from the last request's first token to
the first request's end, when all of them decode. Prefill: ``4096`` is one prompt of so many tokens, ``32x32`` are 32 prompts of 32; the
rate is prompt tokens until the last first token. ``--ttft``: 64 streams run, a 512-token prompt arrives, 20 times.

Sampling is that of a usual chat: temperature 1, top_p 0.5, penalties on; the end of the text is ignored. Reader and engine share a
process, as they do in a server. ``processor`` is the time of all threads of the process for each token, waits that spin included.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albatross_plugin.bench import instant_executor
from albatross_plugin.bench.engine_runs import EngineRunner, Figures, arrivals, decode, prefill
from albatross_plugin.bench.report import Log, table
from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.step import WorkerSpec

MODULE = "albatross_plugin.bench.engine_benchmark"
INSTANT = "instant"


def executor_name(options: argparse.Namespace) -> str:
    """The product's own executor for the device, unless another one was asked for."""
    if options.executor == INSTANT:
        return instant_executor.NAME
    if options.executor:
        return str(options.executor)
    return str(importlib.import_module("albatross_plugin.adapter").EXECUTORS[options.device])


def spec_of(options: argparse.Namespace, batch: int) -> WorkerSpec:
    words: dict[str, Any] = {"state": options.state} if options.state else {}
    if options.no_graphs:
        words["graphs"] = False
    return WorkerSpec(
        executor=executor_name(options),
        model_path=options.model,
        device=options.device,
        worker=0,
        rows=batch + 1,
        token_limit=options.token_limit,
        threads=options.threads,
        pass_tokens=EngineConfig(batch=batch, device=options.device).pass_budget,
        options=json.loads(options.options),
        **words,
    )


async def run(options: argparse.Namespace, log: Log) -> list[Figures]:
    found: list[Figures] = []
    if options.prefill:
        shapes = [parse_shape(text) for text in options.prefill]
        async with EngineRunner(spec_of(options, max(count for count, _ in shapes)), options.device) as engine:
            for count, length in shapes:
                await prefill(engine, count, length)
                found.append(await prefill(engine, count, length, options.runs))
                log.line(found[-1].line())
    if options.ttft:
        async with EngineRunner(spec_of(options, options.streams + 1), options.device) as engine:
            found.append(await arrivals(engine, options.streams, options.ttft_prompt, options.arrivals))
            log.line(found[-1].line())
    if options.prefill or options.ttft:
        return found
    batches = [int(word) for word in options.batch.split(",")]
    shared = None if options.slots == "batch" else max(batches)
    for batch in batches:
        async with EngineRunner(spec_of(options, shared or batch), options.device, options.workers) as engine:
            # The first run pays for allocations and for what is compiled or captured late.
            requests = batch * options.workers
            await decode(engine, requests, options.prompt_tokens, min(16, options.new_tokens))
            found.append(await decode(engine, requests, options.prompt_tokens, options.new_tokens, options.runs))
        log.line(found[-1].line())
    return found


def parse_shape(text: str) -> tuple[int, int]:
    """``4096`` or ``32x32`` as (prompts, tokens of each)."""
    count, times, length = text.partition("x")
    return (int(count), int(length)) if times else (1, int(count))


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--model", default="", help="an RWKV-7 .pth file")
    add("--batch", default="1,32,128,320,960", help="numbers of requests at once (default: %(default)s)")
    add("--workers", type=int, default=1, help="workers, one card each; every one gets a batch (default: %(default)s)")
    add("--new-tokens", type=int, default=128, help="tokens of each answer (default: %(default)s)")
    add("--prompt-tokens", type=int, default=16, help="tokens of each prompt (default: %(default)s)")
    add("--runs", type=int, default=3, help="measured runs of each kind; the median by rate is told (default: %(default)s)")
    add("--slots", choices=("batch", "largest"), default="batch", help="slots of the engine: as many as requests, or the largest number")
    add("--prefill", action="append", metavar="SHAPE", help="measure prompts of this shape instead (may be repeated)")
    add("--ttft", action="store_true", help="measure the time to a first token beside running streams instead")
    add("--streams", type=int, default=64, help="running streams of --ttft (default: %(default)s)")
    add("--ttft-prompt", type=int, default=512, help="tokens of the arriving prompt (default: %(default)s)")
    add("--arrivals", type=int, default=20, help="arriving prompts (default: %(default)s)")
    add("--device", default="cuda", choices=("cuda", "cpu"), help="where to run (default: %(default)s)")
    add("--executor", help=f"module:Class of another executor, or {INSTANT!r}: none at all, to measure the engine's own cost")
    add("--options", default="{}", help='that executor\'s options as JSON, for example \'{"step_ms": 1.6, "row_us": 9.8}\'')
    add("--state", choices=("auto", "fp16", "fp32"), help="type of the recurrent state")
    add("--no-graphs", action="store_true", help="launch every step kernel by kernel")
    add("--threads", type=int, default=1, help="threads of one operator on the CPU (default: %(default)s)")
    add("--token-limit", type=int, default=65530, help="ids from here on are never produced (default: %(default)s)")
    add("--json", type=Path, help="write the figures to this file as JSON")
    add("--log", type=Path, help="write the log to this file too")
    options = parser.parse_args(arguments)
    if options.workers > 1 and (options.prefill or options.ttft):
        parser.error("--workers is for decoding")
    if not options.model and not options.executor:
        parser.error("--model is needed, unless --executor is given")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    with Log(options.log) as log:
        log.head(MODULE, sys.argv[1:] if arguments is None else arguments)
        found = asyncio.run(run(options, log))
        if options.json:
            options.json.write_text(json.dumps([vars(figures) for figures in found], indent=2) + "\n", encoding="utf-8")
        heads = ("what", "tok/s", "steady tok/s", "first token ms", "longest gap ms", "step ms", "processor us/token", "peak memory MB")
        log.summary(table(heads, [figures.row() for figures in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
