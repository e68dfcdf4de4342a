"""Every kernel once, at small sizes: what a memory or race checker is to look at.

compute-sanitizer --tool memcheck python -m gpu.one_pass        (from the folder tests)
"""

from __future__ import annotations

import sys

import tiny
import torch
from gpu.card import Model

from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.model.cuda_sampler import CudaSampler

ROWS = 33
VOCAB = 2048

PARAMS = (
    SamplingParams(top_p=0.5, seed=1),
    SamplingParams(top_p=1.0, top_k=5, presence_penalty=0.3, seed=2),
    SamplingParams(temperature=0.0, logit_bias=((7, -100.0), (9, 2.0))),
    SamplingParams(top_p=0.9, global_penalty=True, logprobs=3, seed=3),
    SamplingParams(top_p=1.0, frequency_penalty=0.0, seed=4),
)


def forward(recurrent: torch.dtype, own: bool) -> None:
    """Few rows (products of our own), many rows (cuBLASLt and grouped products), rows of one and of several tokens."""
    model = Model(tiny.random_checkpoint(2, 128, vocab=VOCAB), ROWS, 256, recurrent)
    if own:
        model.products._matmul = lambda name, ways, x, weight, transposed, out, beta: out.normal_()
        model.products.head = lambda normed, logits: logits.normal_()
    for rows in (1, 2, 4, 8):
        if not own:
            model.products.measure(rows)
        model.feed({slot: [slot + 1] for slot in range(rows)}, ragged=False)
        ways = model.products.ways(rows)
        ways.narrow, ways.choice = True, {"output": None, "key": None, "value": None if rows <= 4 else 0}
        model.products._ways[rows] = ways
        model.feed({slot: [slot + 1] for slot in range(rows)}, ragged=False)
    model.feed({slot: [slot + 1] for slot in range(ROWS)}, ragged=False)
    model.feed({0: [1], 5: list(range(1, 18)), 9: list(range(1, 41)), 2: [7, 8]})


def sample() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    sampler = CudaSampler(ROWS + 1, VOCAB, VOCAB - 6, device)
    requests = [(slot, Request(slot + 1, (1, 2, 3), PARAMS[slot % len(PARAMS)])) for slot in range(ROWS)]
    sampler.admit_many(requests)
    slots = torch.arange(ROWS, dtype=torch.int32, device=device)
    last = torch.zeros(ROWS + 1, dtype=torch.int32, device=device)
    results, tops = (torch.zeros(ROWS, *shape, dtype=torch.int32, device=device) for shape in ((4,), (2, 20)))
    for _ in range(3):
        sampler.sample(torch.randn(ROWS, VOCAB, device=device) * 3, slots, last, results, tops)
    tokens, failures, _ = sampler.read(results.cpu(), tops.cpu(), list(range(ROWS)))
    assert not failures and all(0 <= token < VOCAB - 6 for token in tokens)


def main() -> int:
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        for recurrent in (torch.float16, torch.float32):
            forward(recurrent, "--own" in sys.argv)
        sample()
        torch.cuda.synchronize()
    print("one pass of every kernel is done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
