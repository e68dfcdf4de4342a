"""The CUDA engine's own logic, kernels apart: plans, padded sizes, captured steps, slots, what requests ask for. On a pretended card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from gpu.card import generate, greedy, worker_spec
from model import kept_states
from model.plans import LENGTHS, SCRIPT, VOCAB, ask, assert_close, assert_equal, prompt, slot_state, start
from model.pretended_card import Card, pretend

from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.engine.step import Admission, Chunk, StepPlan
from albatross_plugin.model.cuda_executor import CudaExecutor

Make = Callable[..., CudaExecutor]

# --- steps -------------------------------------------------------------------------------------------------------------


def test_a_script_in_batches_of_any_size(script: Path, make: Make, card: Card) -> None:
    executor = make(script, 33)
    for count in (1, 2, 7, 33):
        prompts = {slot: [34] if slot % 2 else [5, 6, 34] for slot in range(count)}
        replays = card.replays
        said = generate(executor, prompts, greedy(), len(SCRIPT) - 1)
        assert set(map(tuple, said.values())) == {tuple(SCRIPT[1:])}, count
        assert card.replays - replays == len(SCRIPT) - 1, "one launch a step"


@pytest.mark.parametrize("chunk", [1, 5, 16, 1000])
@pytest.mark.parametrize("state", ["fp16", "fp32"])
def test_plans_cut_anyhow_say_what_the_reference_says(
    random_model: Path, make: Make, reference: Callable[..., Any], drive: Callable[..., Any], chunk: int, state: str
) -> None:
    """Mixed plans, plans that sample nobody, and decoding; slots in any order."""
    requests = [ask(i, prompt(length), logprobs=2, prompt_logprobs=True) for i, length in enumerate(LENGTHS)]
    wanted = reference(random_model, requests, 8)
    executor = make(random_model, 7, state=state, pass_tokens=100)
    found = drive(executor, requests, 8, chunk=chunk, slots=[3, 0, 6, 1, 5, 2, 4])
    assert found.tokens == wanted.tokens and not found.failures
    for mine, theirs in zip(found.logprobs + found.prompt_logprobs, wanted.logprobs + wanted.prompt_logprobs, strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize("batch", [1, 2, 5, 6])
def test_a_batch_whose_last_size_is_itself(
    random_model: Path, make: Make, reference: Callable[..., Any], drive: Callable[..., Any], batch: int
) -> None:
    requests = [ask(i, prompt(5, i), logprobs=2) for i in range(batch)]
    wanted = reference(random_model, requests, 6)
    assert drive(make(random_model, batch), requests, 6).tokens == wanted.tokens


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_way_to_compute_a_product_is_right(
    random_model: Path, monkeypatch: pytest.MonkeyPatch, reference: Callable[..., Any], drive: Callable[..., Any], seed: int
) -> None:
    """Other clocks find other ways the fastest."""
    pretend(monkeypatch, seed=seed)
    requests = [ask(i, prompt(length), logprobs=2) for i, length in enumerate(LENGTHS)]
    wanted = reference(random_model, requests, 8)
    executor = CudaExecutor(worker_spec(random_model, 8, VOCAB, pass_tokens=300), lambda loaded, total: None)
    assert drive(executor, requests, 8, chunk=30).tokens == wanted.tokens
    executor.close()


def test_a_captured_step_reads_the_slots_of_this_step(random_model: Path, make: Make, card: Card, reference: Callable[..., Any]) -> None:
    """The same graph for other slots, in another order, and for fewer rows than it has; what takes no part stays bit by bit."""
    requests = {slot: ask(slot, prompt(4, slot), logprobs=2) for slot in range(6)}
    wanted = reference(random_model, list(requests.values()), 8).tokens
    executor = make(random_model, 6)
    admissions, chunks = zip(*(start(request, slot) for slot, request in requests.items()), strict=True)
    said: dict[int, list[int]] = {slot: [] for slot in requests}

    def step(plan: StepPlan) -> None:
        idle = [slot for slot in requests if slot not in plan.slots]
        before = [slot_state(executor, slot) for slot in idle]
        result = executor.collect(executor.launch(plan))
        for slot, kept in zip(idle, before, strict=True):
            assert_equal(kept, slot_state(executor, slot))
        for slot, token in zip(plan.sampled, result.tokens, strict=True):
            said[slot].append(token)

    step(StepPlan(0, list(admissions), [], list(chunks)))
    eager = card.eager
    for number, slots in enumerate(([0, 1, 2], [5, 4, 3], [2, 0], [1], [3, 2, 1, 0], [4, 5, 0, 1, 2], [0, 1, 2, 3, 4, 5]), 1):
        step(StepPlan(number, [], slots))
    assert card.eager == eager, "all of them were replays"
    newcomer = ask(9, prompt(9))
    step(StepPlan(8, [Admission(5, newcomer)], [2, 1], [Chunk(5, newcomer.prompt_ids[:8], False)]))
    step(StepPlan(9, [], [4], [Chunk(5, newcomer.prompt_ids[8:], True)]))
    said.pop(5)
    for slot, tokens in said.items():
        assert len(tokens) > 3 and tokens == wanted[slot][: len(tokens)]


def test_a_slot_is_given_away_while_a_step_with_it_is_open(random_model: Path, make: Make, reference: Callable[..., Any]) -> None:
    first, second, third = (ask(i, prompt(3, i), logprobs=2, **more) for i, more in enumerate(({}, {"presence_penalty": 2.0}, {})))
    wanted = reference(random_model, [first, second, third], 6).tokens
    executor = make(random_model, 3)
    admissions, chunks = zip(start(first, 0), start(second, 2), strict=True)
    both, alone = [2, 0], [0]
    admission, chunk = start(third, 2)
    plans = [
        StepPlan(0, list(admissions), [], list(chunks)),
        StepPlan(1, [], both),
        StepPlan(2, [], both),
        # The second request was aborted; its tokens of steps 1 and 2 are still under way.
        StepPlan(3, [admission], alone, [Chunk(2, chunk.token_ids[:2], False)]),
        StepPlan(4, [], alone, [Chunk(2, chunk.token_ids[2:], True)]),
        StepPlan(5, [], both),
    ]
    tickets, results = [], []
    for plan in plans:
        tickets.append(executor.launch(plan))
        if len(tickets) == executor.pipeline_depth:
            results.append(executor.collect(tickets.pop(0)).tokens)
    results += [executor.collect(ticket).tokens for ticket in tickets]
    zero, one, two = wanted
    assert results == [[zero[0], one[0]], [one[1], zero[1]], [one[2], zero[2]], [zero[3]], [zero[4], two[0]], [two[1], zero[5]]]


def test_a_step_is_waited_for_when_it_is_collected(random_model: Path, make: Make, card: Card) -> None:
    executor = make(random_model, 2)
    request = ask(0, prompt(20))
    waits = card.waits
    tickets = [
        executor.launch(StepPlan(0, [Admission(0, request)])),
        executor.launch(StepPlan(1, [], [], [Chunk(0, request.prompt_ids[:15], False)])),
        executor.launch(StepPlan(2, [], [], [Chunk(0, request.prompt_ids[15:], True)])),
    ]
    assert card.waits == waits
    results = [executor.collect(ticket) for ticket in tickets]
    assert card.waits == waits + 2
    assert [(result.step, len(result.tokens)) for result in results] == [(0, 0), (1, 0), (2, 1)]


# --- requests ----------------------------------------------------------------------------------------------------------


def test_smp_5_rows_that_fail_end_alone(tmp_path: Path, make: Make) -> None:
    poison = tiny.poison_checkpoint(SCRIPT, SCRIPT[2], 2, 64, VOCAB, row=250)
    executor = make(tiny.write(tmp_path / "poison.pth", poison), 4)
    requests = {0: ask(0, [SCRIPT[0]]), 3: ask(1, [SCRIPT[1]]), 1: ask(2, [SCRIPT[2], SCRIPT[4]]), 2: ask(3, [SCRIPT[2]])}
    admissions, chunks = zip(*(start(request, slot) for slot, request in requests.items()), strict=True)
    result = executor.collect(executor.launch(StepPlan(0, list(admissions), [], list(chunks))))
    assert result.tokens[:3] == [SCRIPT[1], SCRIPT[2], SCRIPT[5]]
    assert list(result.failures) == [2] and "not finite" in result.failures[2]
    result = executor.collect(executor.launch(StepPlan(1, [], [0, 3, 1])))
    assert [result.tokens[0], result.tokens[2]] == [SCRIPT[2], SCRIPT[6]] and list(result.failures) == [3]
    assert generate(executor, {2: [SCRIPT[3]], 3: [SCRIPT[4]]}, greedy(), 3) == {2: SCRIPT[4:7], 3: SCRIPT[5:8]}


def test_penalties_bias_and_bans_are_those_of_the_reference(
    random_model: Path, make: Make, reference: Callable[..., Any], drive: Callable[..., Any]
) -> None:
    settings: list[dict[str, Any]] = [
        {"frequency_penalty": 1.0, "penalty_decay": 0.5},
        {"presence_penalty": 3.0, "global_penalty": True},
        {"frequency_penalty": 2.0, "global_penalty": True, "logit_bias": ((7, 30.0), (9, -100.0))},
        {"logit_bias": tuple((token, -100.0) for token in range(0, VOCAB, 3))},
        {"ignore_eos": False, "logit_bias": ((0, 50.0),)},
        {"presence_penalty": 1.0, "frequency_penalty": 1.0, "penalty_decay": 0.001},
    ]
    requests = [ask(i, prompt(9, i), **more) for i, more in enumerate(settings)]
    wanted = reference(random_model, requests, 16)
    assert drive(make(random_model), requests, 16, chunk=4).tokens == wanted.tokens


def test_a_mask_holds_for_one_token(random_model: Path, make: Make) -> None:
    executor = make(random_model, 4)
    masks = {0: 1 << 40 | 1 << 41, 2: 1 << 77, 3: 0}
    requests = {slot: ask(slot, prompt(3, slot), logprobs=None if slot else 1) for slot in range(4)}
    free = generate(executor, {slot: request.prompt_ids for slot, request in requests.items()}, greedy(), 2)
    allowed = {slot: mask.to_bytes(VOCAB // 8, "little") for slot, mask in masks.items()}
    admissions, chunks = zip(*(start(request, slot) for slot, request in requests.items()), strict=True)
    result = executor.collect(executor.launch(StepPlan(0, list(admissions), [], list(chunks), allowed)))
    assert result.logprobs is not None and result.logprobs[0].token_id == result.tokens[0], "the mask leaves the other settings alone"
    assert result.tokens[0] in (40, 41) and result.tokens[1:3] == [free[1][0], 77]
    assert list(result.failures) == [3] and "no token is allowed" in result.failures[3]
    decode = [0, 1]
    again = executor.collect(executor.launch(StepPlan(1, [], decode, [], {0: allowed[2]})))
    assert again.tokens == [77, free[1][1]] and not again.failures
    last = executor.collect(executor.launch(StepPlan(2, [], decode)))
    assert last.tokens[0] != 77


def test_start_states_good_and_bad(random_model: Path, make: Make, reference: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(4)
    shapes = ((128,), (2, 64, 64), (128,)) * 2
    state = [torch.randn(shape, generator=generator) * 0.3 for shape in shapes]
    good, fresh = ask(0, prompt(4), state, logprobs=2), ask(1, prompt(4), logprobs=2)
    wanted = reference(random_model, [good, fresh], 1).tokens
    assert wanted[0] != wanted[1]
    executor = make(random_model, 4)
    bad = [ask(2, prompt(4), state[:5]), ask(3, prompt(4), [*state[:5], torch.zeros(3)])]
    admissions, chunks = zip(*(start(request, slot) for slot, request in enumerate((bad[0], good, bad[1], fresh))), strict=True)
    result = executor.collect(executor.launch(StepPlan(0, list(admissions), [], list(chunks))))
    assert [result.tokens[1], result.tokens[3]] == [wanted[0][0], wanted[1][0]]
    assert sorted(result.failures) == [0, 2] and all(text.startswith("state: ") for text in result.failures.values())
    admission, chunk = start(fresh, 0)
    again = executor.collect(executor.launch(StepPlan(1, [admission], [], [chunk])))
    assert again.tokens == [wanted[1][0]] and not again.failures


def test_seeds_repeat_whoever_sits_beside_them(random_model: Path, make: Make, drive: Callable[..., Any]) -> None:
    def request(number: int, seed: int) -> Request:
        return Request(number, prompt(6), SamplingParams(max_tokens=32, temperature=1.0, top_p=0.9, seed=seed))

    executor = make(random_model, 8)
    alone = drive(executor, [request(0, 11)], 12).tokens[0]
    many = drive(executor, [request(i, seed) for i, seed in enumerate((5, 11, 6, -3, 11, 11 + (1 << 40)))], 12, chunk=4).tokens
    assert many[1] == many[4] == alone and len(set(map(tuple, many))) == 5


def test_a_state_that_is_kept_is_copied_to_whoever_shares_the_prompt(random_model: Path, make: Make) -> None:
    executor = make(random_model, 6, kept=2)
    said = kept_states.check(executor, prompt(40), greedy())
    assert said[0] == said[1] == said[2] == said[3] and said[5] == said[0][: len(said[5])] and len(said[5]) == 5
