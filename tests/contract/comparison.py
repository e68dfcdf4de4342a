"""The same requests in one Runner, at once: through this engine, and through the Runner's own loader behind its lock.

    python tests/contract/comparison.py --runner PATH

The launched Runner switches between the two strategies, which take turns. Both read the same random weights in the shape of the 0.1B model on the
CPU, with as many threads, and stream as many tokens. Exit status 0 if no request of this engine waited for another's end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contract.served import Served, launcher

from albatross_plugin.bench.checkpoints import SHAPES, checkpoint
from albatross_plugin.bench.openai_client import Endpoint, Generation, generate
from albatross_plugin.bench.report import Log, machine, median, versions
from albatross_plugin.runner.checkout import find_main, look_at

WORDS = ("sea", "wind", "wing", "salt", "rope", "mast", "gull", "foam", "reef", "tide", "buoy", "keel", "hull", "oar", "deck", "fog")


@dataclass(frozen=True)
class Burst:
    """``rate``: tokens a second from the first start to the last end. ``waited``: requests whose first text came after another's last."""

    rate: float
    first: float
    last: float
    waited: int

    def __str__(self) -> str:
        return f"{self.rate:.1f} tokens/s, first text after {self.first:.2f} to {self.last:.2f} s, {self.waited} waited for another's end"


def burst(server: Served, requests: int, tokens: int) -> Burst:
    """Raises RuntimeError unless every answer is whole."""
    endpoint = Endpoint.parse(server.url)
    bodies = [
        {"prompt": f"{WORDS[i % 16]} {i}: what does it do to the ship, and why?", "max_tokens": tokens, "stream": True, "temperature": 1, "top_p": 0.5,
         "presence_penalty": 0, "frequency_penalty": 0}
        for i in range(requests)
    ]  # fmt: skip

    async def all_of_them() -> list[Generation]:
        return await asyncio.gather(*(generate(endpoint, "/v1/completions", body, 600) for body in bodies))

    done = asyncio.run(all_of_them())
    for each in done:
        if each.error is not None or each.first is None:
            raise RuntimeError(f"an answer was cut: {each}")
    wall = max(each.ended for each in done) - min(each.started for each in done)
    ends = sorted(each.times[-1] for each in done)
    latencies = [each.first_latency or 0.0 for each in done]
    waited = sum(each.first > ends[0] for each in done if each.first is not None)
    return Burst(requests * tokens / wall, min(latencies), max(latencies), waited)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Requests at once in one Runner, through this engine and through the Runner's own lock.")
    parser.add_argument("--runner", required=True, metavar="PATH")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="threads of an operator, on both sides")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args(argv)
    checkout = look_at(find_main(options.runner, Path.cwd()))
    sides: dict[str, list[Burst]] = {f"albatross batch={options.requests} device=cpu": [], "cpu fp32": []}
    model = checkpoint(SHAPES["0.1b"])
    threads = {name: str(options.threads) for name in ("ALBATROSS_THREADS", "OMP_NUM_THREADS")}
    with Log(options.log) as log, Served(launcher(checkout.main), environ=threads) as server:
        log.line(f"python tests/contract/comparison.py; {machine()}; {versions()}; Runner {checkout.form}; {SHAPES['0.1b']}")
        log.line(f"{options.requests} streams at once, {options.tokens} tokens each, {options.threads} thread on both sides")
        for _ in range(options.pairs):
            for strategy, bursts in sides.items():
                answer = server.switch(model, strategy)
                if answer.status_code != 200:
                    raise RuntimeError(answer.text)
                # The first call of a load is not measured.
                server.post("/v1/completions", {"prompt": "a", "max_tokens": 8}).raise_for_status()
                bursts.append(burst(server, options.requests, options.tokens))
                log.line(f"{strategy}: {bursts[-1]}")
        ours, own = sides.values()
        ratio = median(each.rate for each in ours) / median(each.rate for each in own)
        waited = max(each.waited for each in ours)
        log.line(
            f"summary: {ratio:.1f} times the tokens a second of the Runner's own path; {waited} of {options.requests} waited for another's end, against {max(each.waited for each in own)}"
        )
    return int(waited > 0)


if __name__ == "__main__":
    sys.exit(main())
