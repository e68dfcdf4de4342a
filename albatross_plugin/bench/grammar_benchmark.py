"""What a request bound to a JSON schema costs its neighbours: the same free texts without it, beside it, and beside one more free text.

    python -m albatross_plugin.bench.grammar_benchmark --rounds 7
    python -m albatross_plugin.bench.grammar_benchmark --device cuda --model FILE.pth --free 31

In each round the free requests run three times, in an order that turns: alone, beside a free one, and beside a bound one, which is asked
again whenever it has ended, so that there is always one. A figure is the time of a step: from the moment when all free ones have their
first token to the end of the first of them, for each token. Their texts are compared, and the bound ones parsed. The exit status is 2 when
the free ones were slowed by more than ``--allow``, beside what a free neighbour in that place costs: on a card by the clock, on the CPU in
processor time, since a step there is nothing else and other programs have no part in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from albatross_plugin.bench.checkpoints import SHAPES, checkpoint
from albatross_plugin.bench.engine_runs import FIRST_ID, IDS, EngineRunner
from albatross_plugin.bench.report import Log, median, table
from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.delivery import NewTokens
from albatross_plugin.engine.messages import Failed, Finished
from albatross_plugin.engine.request import FinishReason, Request, SamplingParams
from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.grammar import Grammars, JsonGrammar, json_source
from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

MODULE = "albatross_plugin.bench.grammar_benchmark"
KINDS = ("alone", "free neighbour", "bound neighbour")
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "odd"]}, "maxItems": 2},
        "score": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["title", "tags", "score"],
    "additionalProperties": False,
}


Moment = tuple[float, float]


def now() -> Moment:
    return time.perf_counter(), time.process_time()


class Failure(RuntimeError):
    """A request failed, or a text is not what it has to be."""


@dataclass
class Text:
    """One request, read to its end. Moments are (seconds of the clock, of the process's processor time)."""

    tokens: list[int] = field(default_factory=list)
    first: Moment | None = None
    ended: Moment = (0.0, 0.0)
    reason: FinishReason | None = None


class Bench:
    def __init__(self, engine: EngineRunner, options: argparse.Namespace) -> None:
        self._engine, self._free, self._new = engine, options.free, options.new_tokens
        self._tokenizer = WorldTokenizer(find_vocabulary(None))
        grammars = Grammars.of(self._tokenizer.vocabulary, engine.info.vocab_size)
        self._grammar: JsonGrammar = grammars.compile(json_source(json.dumps(SCHEMA), False, ()))
        self.bound_tokens = self.bound_texts = 0

    async def ask(self, number: int, tokens: int, grammar: JsonGrammar | None = None) -> Text:
        """``number`` decides the prompt and the seed."""
        prompt = tuple(FIRST_ID + (number * 7919 + place * 31) % IDS for place in range(16))
        params = SamplingParams(max_tokens=tokens, top_p=0.5, frequency_penalty=0.2, ignore_eos=True, seed=number, grammar=grammar)
        core = self._engine.core
        completion = core.submit([Request(core.next_request_id(), prompt, params)], loop=asyncio.get_running_loop())
        text = Text()
        try:
            while events := await completion.next_events():
                moment = now()
                for _, event in events:
                    if isinstance(event, NewTokens):
                        text.first = text.first or moment
                        text.tokens += event.token_ids
                    elif isinstance(event, Failed):
                        raise Failure(event.message)
                    elif isinstance(event, Finished):
                        text.reason = event.reason
        finally:
            completion.abort()
        text.ended = now()
        return text

    async def neighbour(self, bound: bool) -> None:
        """One request after the other until cancelled."""
        number = 1000
        while True:
            number += 1
            text = await self.ask(number, 400 if bound else 60, self._grammar if bound else None)
            if bound:
                self.bound_tokens += len(text.tokens)
                if text.reason is FinishReason.STOP:
                    value = json.loads(self._tokenizer.decode_bytes(text.tokens).decode())
                    if not isinstance(value, dict) or set(value) != set(SCHEMA["properties"]):  # type: ignore[call-overload]
                        raise Failure(f"a bound text does not fit its schema: {value!r}")
                    self.bound_texts += 1

    async def run(self, kind: str) -> tuple[Moment, list[list[int]]]:
        """(seconds for each step of the free requests, by the clock and of processor time; their tokens)."""
        beside = None if kind == KINDS[0] else asyncio.create_task(self.neighbour(kind == KINDS[2]))
        tasks = [asyncio.create_task(self.ask(number, self._new)) for number in range(self._free)]
        try:
            texts = await asyncio.gather(*tasks)
        finally:
            if beside is not None:
                if beside.done():
                    beside.result()
                beside.cancel()
        begin, end = max(text.first or text.ended for text in texts), min(text.ended for text in texts)
        steps = self._new - 1
        return ((end[0] - begin[0]) / steps, (end[1] - begin[1]) / steps), [text.tokens for text in texts]


async def run(options: argparse.Namespace, log: Log) -> int:
    model = options.model or checkpoint(SHAPES[options.shape], options.cache)
    config = EngineConfig(device=options.device, batch=options.free + 1)
    executors = {"cpu": "albatross_plugin.model.executor:TorchExecutor", "cuda": "albatross_plugin.model.cuda_executor:CudaExecutor"}
    spec = WorkerSpec(
        executor=executors[options.device],
        model_path=str(model),
        device=options.device,
        worker=0,
        rows=options.free + 2,
        token_limit=65530,
        threads=options.threads,
        pass_tokens=config.pass_budget,
    )
    seconds: dict[str, list[Moment]] = {kind: [] for kind in KINDS}
    wanted: list[list[int]] = []
    same = True
    async with EngineRunner(spec, options.device) as engine:
        bench = Bench(engine, options)
        await bench.run(KINDS[2])
        for turn in range(options.rounds):
            for kind in KINDS[turn % 3 :] + KINDS[: turn % 3]:
                step, tokens = await bench.run(kind)
                wanted = wanted or tokens
                same = same and tokens == wanted
                seconds[kind].append(step)
                log.line(f"round {turn + 1}  {kind}: {1e3 * step[0]:.3f} ms a step, {1e3 * step[1]:.3f} ms of processor time")
    slowed: dict[str, list[float]] = {}
    rows = []
    for kind in KINDS:
        # Within rounds, so that a machine that changes its pace does no harm.
        pairs = list(zip(seconds[KINDS[2]], seconds[kind], strict=True))
        slowed[kind] = [median(bound[i] / other[i] for bound, other in pairs) for i in (0, 1)]
        figures = [f"{1e3 * median(step[i] for step in seconds[kind]):.3f}" for i in (0, 1)]
        rows.append([kind, *figures, *(["", ""] if kind == KINDS[2] else [f"{ratio:.3f}" for ratio in slowed[kind]])])
    # On a card the number of rows of a pass decides which product is the fastest, and another one rounds otherwise.
    excuse = ", as may be where passes of other sizes round otherwise" if options.device == "cuda" and not same else ""
    heads = (f"{options.free} free requests", "step, ms", "processor, ms", "bound neighbour over this", "of processor time")
    log.summary(
        table(heads, rows) + f"\n\nThe free texts were {'the same in all runs' if same else 'NOT the same in all runs'}{excuse}. "
        f"The bound neighbours had {bench.bound_tokens} tokens; {bench.bound_texts} of their texts were complete, and fit the schema."
    )
    found = slowed[KINDS[1]][0 if options.device == "cuda" else 1]
    return 0 if found <= 1 + options.allow and (same or excuse) and bench.bound_texts else 2


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--rounds", type=int, default=7, help="rounds of three runs each; medians are told (default: %(default)s)")
    add("--free", type=int, default=7, help="free requests (default: %(default)s)")
    add("--new-tokens", type=int, default=64, help="tokens of each of them (default: %(default)s)")
    add("--allow", type=float, default=0.1, help="by how much they may be slowed (default: %(default)s)")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="where to run (default: %(default)s)")
    add("--threads", type=int, default=1, help="threads of one operator on the CPU (default: %(default)s)")
    add("--shape", default="0.1b", choices=sorted(SHAPES), help="a model with random weights of this shape (default: %(default)s)")
    add("--model", help="an RWKV-7 .pth file in its place")
    add("--cache", type=Path, help="folder for the checkpoint (default: the user's cache folder)")
    add("--log", type=Path, help="write the log to this file too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    with Log(options.log) as log:
        shown = ("device", "model", "shape", "rounds", "free", "new_tokens", "threads")
        words = [[f"--{name.replace('_', '-')}", str(value)] for name in shown if (value := getattr(options, name))]
        log.head(MODULE, [word for pair in words for word in pair])
        return asyncio.run(run(options, log))


if __name__ == "__main__":
    sys.exit(main())
