"""The bare model on a card: the engine's own captured steps and passes, replayed, beside the roofline of the same run.

    python -m albatross_plugin.bench.step_benchmark --shape 1.5b,7.2b --batch 1,32,128,320,960 --state fp16,fp32 --prefill --json OUT.jsonl
    python -m albatross_plugin.bench.step_benchmark --model FILE.pth --batch 1,32

What the engine reaches can be held against these rates, and they against the roofline: the larger of two times, that of the bytes at the
rate of a large copy and that of the operations at the rate of a large float16 product, both measured first. ``forward`` ends with the
logits; ``forward+sampler`` is the whole step, tokens fed back. ``--prefill`` adds passes of one prompt of 4,096 tokens and of 32 prompts of
32, each with a first token drawn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from albatross_plugin.bench.bare_model import BareModel, Source
from albatross_plugin.bench.card_clock import measure_ceilings, milliseconds
from albatross_plugin.bench.measurements import FORWARD, PREFILL, WITH_SAMPLER, Lines
from albatross_plugin.bench.report import Log, table
from albatross_plugin.bench.roofline import OFFICIAL, STATE_BYTES, Ceilings, pass_work

if TYPE_CHECKING:
    import torch

MODULE = "albatross_plugin.bench.step_benchmark"
PREFILLS = ((1, 4096), (32, 32))


def numbers(text: str) -> list[int]:
    """1,32 as [1, 32]. Raises ArgumentTypeError for anything but positive numbers."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, got {text!r}") from None
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text!r}")
    return found


def choices(known: Sequence[str], text: str) -> list[str]:
    found = text.split(",")
    if unknown := [part for part in found if part not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return found


class StepBenchmark:
    """Runs and reports. ``rows`` collects the lines of the summary."""

    def __init__(self, log: Log, lines: Lines, ceilings: Ceilings, seconds: float, device: torch.device) -> None:
        self._log, self._lines, self._ceilings = log, lines, ceilings
        self._seconds, self._device = seconds, device
        self.rows: list[list[str]] = []

    def run(self, source: Source, state: str, batches: Sequence[int], with_prefill: bool) -> None:
        prefills = PREFILLS if with_prefill else ()
        started = time.perf_counter()
        sizes = {*batches, *(prompts for prompts, _ in prefills)}
        model = BareModel(source, state, sorted(sizes), [prompts * tokens for prompts, tokens in prefills], self._device)
        self._log.line(f"{source.name}, state {state}: products measured and steps captured in {time.perf_counter() - started:.1f} s")
        try:
            for batch in batches:
                ways = {"ways": asdict(model.ways(batch))}
                self._report(source, state, FORWARD, batch, 1, milliseconds(model.forward(batch), self._seconds), ways)
                self._report(source, state, WITH_SAMPLER, batch, 1, milliseconds(model.step(batch), self._seconds), ways)
            for prompts, tokens in prefills:
                ways = {"ways": asdict(model.ways(prompts * tokens))}
                spent = milliseconds(model.prefill(prompts, tokens), self._seconds)
                self._report(source, state, f"{PREFILL} T={tokens}", prompts, tokens, spent, ways)
        finally:
            model.close()

    def _report(self, source: Source, state: str, kind: str, rows: int, tokens: int, spent: float, more: Mapping[str, Any]) -> None:
        work = pass_work(source.sizes, rows, tokens, state)
        floor, rate = 1e3 * self._ceilings.seconds(work), 1e3 * rows * tokens / spent
        what = f"{source.name}, state {state}, {kind}"
        self._log.line(f"{what:36} {rows:4} rows {spent:9.3f} ms {rate:10,.0f} tok/s  roofline {floor:8.3f} ms  {floor / spent:4.0%}")
        self.rows.append([what, str(rows), f"{spent:.3f}", f"{rate:,.0f}", f"{floor:.3f}", f"{floor / spent:.0%}"])
        self._lines.add(
            model=source.name,
            batch=rows,
            kind=kind,
            state=state,
            milliseconds=round(spent, 4),
            tokens_per_second=round(rate, 1),
            roofline_milliseconds=round(floor, 4),
            fraction=round(floor / spent, 4),
            bytes=work.bytes,
            flops=work.flops,
            **more,
        )


def parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", type=Path, help="a .pth file")
    what.add_argument("--shape", type=lambda text: choices(tuple(OFFICIAL), text), help="random weights, such as 1.5b,7.2b")
    made.add_argument("--batch", type=numbers, default=[1, 32, 128, 320, 960], help="rows of a step (default: 1,32,128,320,960)")
    made.add_argument("--state", type=lambda text: choices(tuple(STATE_BYTES), text), default=["fp16"], help="fp16, fp32, or both")
    made.add_argument("--prefill", action="store_true", help="also passes of prompts")
    made.add_argument("--seconds", type=float, default=0.3, help="how long each is replayed (default: 0.3)")
    made.add_argument("--json", type=Path, help="write the figures to this file, a JSON object a line")
    made.add_argument("--log", type=Path, help="write what is printed to this file too")
    made.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the figures into this folder; needs --json and matplotlib")
    return made


def run(options: argparse.Namespace, log: Log, lines: Lines) -> None:
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    ceilings = measure_ceilings(device)
    card = torch.cuda.get_device_name(device)
    log.line(f"card: {card}, copy {ceilings.copy / 1e9:.0f} GB/s, fp16 product {ceilings.product / 1e12:.0f} TFLOP/s")
    lines.add_ceilings(card, ceilings)
    benchmark = StepBenchmark(log, lines, ceilings, options.seconds, device)
    with torch.inference_mode():
        for name in [options.model] if options.model else options.shape:
            source = Source.file(name, device) if options.model else Source.random(name, device)
            torch.cuda.empty_cache()
            for state in options.state:
                benchmark.run(source, state, options.batch, options.prefill)
            del source
    log.summary(table(("", "rows", "ms", "tokens/s", "roofline, ms", "of the roofline"), benchmark.rows))


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.plot and not options.json:
        made.error("--plot draws what --json writes")
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("there is no CUDA card here\n")
        return 1
    with Log(options.log) as log, Lines(options.json) as lines:
        log.head(MODULE, sys.argv[1:] if arguments is None else list(arguments))
        run(options, log, lines)
    if options.plot:
        from albatross_plugin.bench import plots

        return plots.main([str(options.json), "--out", str(options.plot)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
