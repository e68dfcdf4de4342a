"""Every kernel alone: microseconds, bytes and operations of a call, and the fraction of the card's measured ceiling.

    python -m albatross_plugin.bench.kernel_benchmark --shape 1.5b,7.2b --json OUT.jsonl
    python -m albatross_plugin.bench.kernel_benchmark --shape 1.5b --batch 320 --only wkv

Calls are replayed from a CUDA graph over buffers that together are larger than the second-level cache, so that everything comes from
memory. In a step the vectors that go from kernel to kernel are still in that cache, so a kernel with little else to read takes less there.
Products show the fastest of the ways that cuBLASLt has.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from albatross_plugin.bench.card_clock import Replay, measure_ceilings, milliseconds
from albatross_plugin.bench.kernel_cases import Case, KernelCases
from albatross_plugin.bench.measurements import Lines
from albatross_plugin.bench.report import Log, table
from albatross_plugin.bench.roofline import OFFICIAL, Ceilings
from albatross_plugin.bench.step_benchmark import choices, numbers

if TYPE_CHECKING:
    import torch

MODULE = "albatross_plugin.bench.kernel_benchmark"
# Where the card does not say how large its second-level cache is.
_CACHE = 64 << 20


def fastest(case: Case, seconds: float) -> tuple[float, int]:
    """(microseconds of one call, the way that took them)."""
    found = []
    for way, calls in enumerate(case.ways):

        def run(calls: list[Any] = calls) -> None:
            for call in calls:
                call()

        found.append((1e3 * milliseconds(Replay(run), seconds) / len(calls), way))
    return min(found)


def report(model: str, case: Case, spent: float, way: int, ceilings: Ceilings, log: Log, lines: Lines) -> list[str]:
    """Print one case, and return its line of the summary."""
    gigabytes, teraflops = case.work.bytes / spent / 1e3, case.work.flops / spent / 1e6
    part = ceilings.fraction(case.work, spent / 1e6)
    name = f"{case.kernel} {case.variant}".strip()
    log.line(
        f"{model:4} {name:30} {case.rows:4} rows {spent:9.2f} us {case.work.bytes / 1e6:9.3f} MB {case.work.flops / 1e9:8.2f} GFLOP"
        f" {gigabytes:6.0f} GB/s {teraflops:6.1f} TFLOP/s {part:5.0%}"
    )
    lines.add(
        model=model,
        kind="kernel",
        kernel=case.kernel,
        variant=case.variant,
        batch=case.rows,
        microseconds=round(spent, 3),
        bytes=case.work.bytes,
        flops=case.work.flops,
        gb_s=round(gigabytes, 1),
        tflop_s=round(teraflops, 2),
        fraction=round(part, 4),
        way=way,
        ways=len(case.ways),
    )
    return [f"{model} {name}", str(case.rows), f"{spent:.1f}", f"{gigabytes:.0f}", f"{teraflops:.1f}", f"{part:.0%}"]


def measure(options: argparse.Namespace, device: torch.device, log: Log, lines: Lines) -> None:
    import torch

    from albatross_plugin.model.kernels import ops

    kernels = ops()
    ceilings = measure_ceilings(device)
    torch.cuda.empty_cache()
    card, properties = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device)
    cache = int(getattr(properties, "L2_cache_size", 0)) or _CACHE
    log.line(
        f"card: {card}, copy {ceilings.copy / 1e9:.0f} GB/s, fp16 product {ceilings.product / 1e12:.0f} TFLOP/s, cache {cache >> 20} MiB"
    )
    lines.add_ceilings(card, ceilings)
    stream: Any = torch.cuda.Stream
    rows = []
    torch.cuda.synchronize(device)
    with torch.inference_mode(), torch.cuda.stream(stream(device)):
        for model in options.shape:
            started = time.perf_counter()
            for case in KernelCases(OFFICIAL[model], kernels, device, cache).all(options.batch, options.only):
                rows.append(report(model, case, *fastest(case, options.seconds), ceilings, log, lines))
            log.line(f"{model}: {time.perf_counter() - started:.1f} s")
    log.summary(table(("", "rows", "us", "GB/s", "TFLOP/s", "of the ceiling"), rows))


def main(arguments: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, formatter_class=form)
    known = tuple(OFFICIAL)
    parser.add_argument(
        "--shape", type=lambda text: choices(known, text), default=["1.5b", "7.2b"], help="which sizes (default: 1.5b,7.2b)"
    )
    parser.add_argument("--batch", type=numbers, default=[1, 32, 128, 320, 960], help="rows of a step (default: 1,32,128,320,960)")
    parser.add_argument("--only", default="", help="only kernels whose name holds this")
    parser.add_argument("--seconds", type=float, default=0.02, help="how long each is replayed (default: 0.02)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, a JSON object a line")
    parser.add_argument("--log", type=Path, help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("there is no CUDA card here\n")
        return 1
    with Log(options.log) as log, Lines(options.json) as lines:
        log.head(MODULE, sys.argv[1:] if arguments is None else list(arguments))
        measure(options, torch.device("cuda", torch.cuda.current_device()), log, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
