"""One check of kept states for every executor: those who copy one go on as if they had been fed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from albatross_plugin.engine.request import Request
from albatross_plugin.engine.step import Admission, Chunk, Kept, StepPlan

SLOTS = 6
ROW = 1


def check(executor: Any, prompt: Sequence[int], params: Any, steps: int = 4, **more: Any) -> list[list[int]]:
    """Slot 0 feeds ``prompt``, the others copy; slot 5 comes when slot 0 is long past it. Returns the tokens of all slots."""
    requests = [Request(slot + 1, tuple(prompt), params, **more) for slot in range(SLOTS)]
    early = [0, 3, 1, 2]
    plans = [
        StepPlan(0, [Admission(0, requests[0])], [], [Chunk(0, prompt[:5], False)]),
        StepPlan(1, [Admission(s, requests[s]) for s in early[1:]], [], [Chunk(0, prompt[5:-1], False)], keep=[Kept(ROW, 0)]),
    ]
    for plan in plans:
        executor.collect(executor.launch(plan))
    pool = executor._pool
    fed = pool.read(0)
    tail = [Chunk(s, prompt[-1:], True) for s in sorted(early)]
    said: list[list[int]] = [[] for _ in range(SLOTS)]

    def run(plan: StepPlan) -> None:
        result = executor.collect(executor.launch(plan))
        assert not result.failures
        for slot, token in zip(plan.sampled, result.tokens, strict=True):
            said[slot].append(token)

    run(StepPlan(2, [], [], tail, copy=[Kept(ROW, s) for s in early[1:]]))
    decoding = sorted(early)
    run(StepPlan(3, [], decoding))
    # A newcomer, beside rows that decode; the kept state is what it was.
    late = StepPlan(4, [Admission(5, requests[5])], decoding, [Chunk(5, prompt[-1:], True)], copy=[Kept(ROW, 5)])
    run(late)
    for step in range(5, 5 + steps):
        run(StepPlan(step, [], [*decoding, 5]))
    kept = executor._pool
    row = kept.rows + ROW
    for layer in range(kept.spec.n_layer):
        for place, tensor in enumerate((kept.att_shift, kept.wkv, kept.ffn_shift)):
            assert torch.equal(tensor[layer, row].float().cpu(), fed[3 * layer + place]), "what is kept is what was fed, to the bit"
    return said
