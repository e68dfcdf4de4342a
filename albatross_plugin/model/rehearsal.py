"""A rehearsal at load: one of each kind of step, so that no request is the first to need a piece of code on the card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from albatross_plugin.engine.request import MAX_LOGPROBS, Request, SamplingParams
from albatross_plugin.engine.step import Admission, Chunk, Executor, Kept, StepPlan

# torch chooses other code for more than 16 rows than for few.
_MANY = 17
# Two pieces, so that a pass ends in the middle of it.
_PROMPT = (1, 2, 3, 4)

_KINDS = (
    SamplingParams(seed=0),
    SamplingParams(top_p=1.0, frequency_penalty=0.0, logprobs=MAX_LOGPROBS, prompt_logprobs=True),
    SamplingParams(temperature=0.0, ignore_eos=True, logit_bias=((1, -100.0), (2, 1.0)), global_penalty=True),
)


def rehearse(executor: Executor, batch: int, pass_tokens: int, vocab_size: int, initial_state: Any = None, kept: int = 0) -> None:
    """Run all kinds of steps with made-up requests on ``executor``, whose ``batch`` slots are free, and drop what they give.

    The driver brings code to the card when it is first called for, and torch has it unpacked then, which takes tens of milliseconds that
    every running stream would wait for. ``pass_tokens``: most tokens of a pass. ``initial_state``: a start state as requests carry it.
    ``kept``: how many states can be kept.
    The slots are as free afterwards as before: who gets one is admitted, which writes all of it anew.
    """
    for plan in _plans(min(batch, _MANY, max(1, pass_tokens // len(_PROMPT))), vocab_size, initial_state, kept):
        executor.collect(executor.launch(plan))


def _plans(slots: int, vocab_size: int, initial_state: Any, kept: int) -> Iterator[StepPlan]:
    steps = count()
    many = list(range(slots))
    yield StepPlan(next(steps), _admit(many, _KINDS[0]), [], [Chunk(slot, _PROMPT, True) for slot in many])
    yield StepPlan(next(steps), [], many)
    others = many[1:]
    if kept:
        yield StepPlan(next(steps), _admit([0], _KINDS[0]), [], [Chunk(0, _PROMPT[:-1], False)], keep=[Kept(0, 0)])
        for slots_of in ([0], many):
            chunks = [Chunk(slot, _PROMPT[-1:], True) for slot in slots_of]
            yield StepPlan(next(steps), _admit(slots_of, _KINDS[0]), [], chunks, copy=[Kept(0, slot) for slot in slots_of])
    mask = {0: bytes([255]) * (4 * -(-vocab_size // 32))}
    for params in _KINDS:
        yield StepPlan(next(steps), _admit([0], params, initial_state), others, [Chunk(0, _PROMPT[:2], False)])
        yield StepPlan(next(steps), [], others, [Chunk(0, _PROMPT[2:], True)])
        yield StepPlan(next(steps), [], many, [], mask)
    yield StepPlan(next(steps), [], many, [], dict.fromkeys(many, mask[0]))


def _admit(slots: Sequence[int], params: SamplingParams, initial_state: Any = None) -> list[Admission]:
    return [Admission(slot, Request(slot + 1, _PROMPT, params, initial_state=initial_state)) for slot in slots]
