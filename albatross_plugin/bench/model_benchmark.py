"""Milliseconds per step of the model alone, without engine or HTTP, beside PyPI's rwkv package with the same threads.

python -m albatross_plugin.bench.model_benchmark MODEL.pth --threads 1 --rows 1 4 16 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

PROMPT = 16
WARM_UP = 3
# The end of the World vocabulary.
TOKENS = 65530

# The package decides at import, from the environment, which model it is: hence a process of its own.
_PEER = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[2]))
from rwkv.model import RWKV
model = RWKV(sys.argv[1].removesuffix(".pth"), "cpu fp32")
logits, state = model.forward(list(range(1, 17)), None)
times = []
for _ in range(int(sys.argv[3]) + 3):
    start = time.perf_counter()
    logits, state = model.forward([int(logits.argmax())], state)
    times.append((time.perf_counter() - start) * 1000)
times = sorted(times[3:])
print("RESULT", times[len(times) // 2])
"""


def measure_package(path: str, threads: int, steps: int) -> float:
    """Median milliseconds of one greedy token of the rwkv package (its JIT on)."""
    environ = {**os.environ, "RWKV_V7_ON": "1", "RWKV_JIT_ON": "1", "RWKV_CUDA_ON": "0", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", _PEER, path, str(threads), str(steps)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return float(done.stdout.rsplit("RESULT", 1)[1])


def measure_rows(executor: Any, rows: int, steps: int, params: Any) -> float:
    """Median milliseconds of a decode step of ``rows`` rows, sampling included."""
    from albatross_plugin.engine.request import Request
    from albatross_plugin.engine.step import Admission, Chunk, StepPlan

    prompt = tuple(range(1, PROMPT + 1))
    admit = [Admission(slot, Request(slot, prompt, params)) for slot in range(rows)]
    executor.collect(executor.launch(StepPlan(0, admit, [], [Chunk(slot, prompt, True) for slot in range(rows)])))
    times = []
    for step in range(steps + WARM_UP):
        start = time.perf_counter()
        executor.collect(executor.launch(StepPlan(step + 1, decode=list(range(rows)))))
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times[WARM_UP:])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Milliseconds per step of the model alone, beside the rwkv package.")
    parser.add_argument("model", help="an RWKV-7 .pth file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--steps", type=int, default=30, help="steps per round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; both sides take turns in each")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--no-package", action="store_true", help="do not run the rwkv package beside it")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    import torch

    from albatross_plugin.engine.request import SamplingParams
    from albatross_plugin.engine.step import WorkerSpec
    from albatross_plugin.model.executor import TorchExecutor

    spec = WorkerSpec("", options.model, options.device, 0, max(options.rows) + 1, TOKENS, options.threads)
    executor = TorchExecutor(spec, lambda loaded, total: None)
    settings = {"greedy": SamplingParams(temperature=0), "default": SamplingParams(), "top_p 1": SamplingParams(top_p=1.0)}
    print(f"torch {torch.__version__}, threads {options.threads}, OMP_WAIT_POLICY {os.environ['OMP_WAIT_POLICY']}, {executor.info}")
    package: list[float] = []
    ours: dict[tuple[int, str], list[float]] = {}
    for _ in range(options.rounds):
        if not options.no_package:
            package.append(measure_package(options.model, options.threads, options.steps))
        for rows in options.rows:
            for name, params in settings.items():
                ours.setdefault((rows, name), []).append(measure_rows(executor, rows, options.steps, params))
    if package:
        print(f"rwkv package, 1 row, greedy: {statistics.median(package):.1f} ms, {1000 / statistics.median(package):.1f} tokens/s")
    for (rows, name), times in ours.items():
        line = f"{rows:3} rows, {name:8}: {statistics.median(times):6.1f} ms a step, {1000 * rows / statistics.median(times):7.1f} tokens/s"
        print(line + (f", {statistics.median(package) * rows / statistics.median(times):5.2f} times the package" if package else ""))
    executor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
