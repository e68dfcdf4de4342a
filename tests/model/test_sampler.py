"""Sampling: distributions against float64 arithmetic and PyPI's rwkv package, penalties, masks, seeds, numbers."""

from __future__ import annotations

import collections
import itertools
import math

import peers
import pytest
import tiny
import torch

from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.model import draw
from albatross_plugin.model.sampler import NOT_FINITE, NOTHING_ALLOWED, Sampler

CPU = torch.device("cpu")
PLAIN = {"frequency_penalty": 0.0}


def make_sampler(params: list[SamplingParams], vocab: int, limit: int | None = None, prompt: tuple[int, ...] = (1,)) -> Sampler:
    sampler = Sampler(len(params) + 1, vocab, vocab if limit is None else limit, CPU)
    for slot, item in enumerate(params):
        sampler.admit(slot, Request(slot, prompt, item))
    return sampler


def counts(logits: torch.Tensor, draws: int, rows: int = 250, **params: float) -> collections.Counter[int]:
    """How often each token came out of ``draws`` draws, ``rows`` at a time, each row with a seed of its own."""
    settings = [SamplingParams(seed=seed, **{**PLAIN, **params}) for seed in range(rows)]
    sampler = make_sampler(settings, logits.numel())
    found: collections.Counter[int] = collections.Counter()
    for _ in range(draws // rows):
        found.update(sampler.sample(logits.repeat(rows, 1), range(rows)).tokens.tolist())
    return found


def exact(logits: torch.Tensor, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> list[float]:
    """The distribution that the rules ask for, in float64: nucleus, then top_k, then temperature."""
    p = torch.softmax(logits.double(), 0).tolist()
    ranked = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if top_p < 1:
        reached = itertools.accumulate(p[i] for i in ranked)
        kept = next(n for n, mass in enumerate(reached, 1) if mass >= top_p - 1e-12)
        ranked = [i for i in ranked if p[i] >= p[ranked[kept - 1]]]
    ranked = ranked[:top_k] if top_k else ranked
    weights = [0.0] * len(p)
    for i in ranked:
        weights[i] = p[i] ** (1 / temperature)
    total = sum(weights)
    return [weight / total for weight in weights]


def in_groups(found: collections.Counter[int], expected: list[float], groups: int = 25) -> tuple[collections.Counter[int], list[float]]:
    """The same by groups of about equal mass, the likely tokens first: for distributions too flat for a cell per token."""
    mass, group_of = [0.0] * groups, {}
    reached = 0.0
    for token in sorted(range(len(expected)), key=lambda i: -expected[i]):
        group_of[token] = min(int(reached * groups), groups - 1)
        mass[group_of[token]] += expected[token]
        reached += expected[token]
    together: collections.Counter[int] = collections.Counter()
    for token, number in found.items():
        together[group_of[token]] += number
    return together, mass


def assert_fits(found: collections.Counter[int], expected: list[float]) -> None:
    """Chi-square at the 0.1 % level (Wilson and Hilferty's approximation); rare tokens are put together."""
    total = sum(found.values())
    assert all(expected[token] > 0 for token in found), "a token came out that the filters exclude"
    cells = [(found[i], total * p) for i, p in enumerate(expected) if total * p >= 5]
    rest = (total - sum(seen for seen, _ in cells), total - sum(want for _, want in cells))
    cells += [rest] if rest[1] > 1 else []
    statistic = sum((seen - want) ** 2 / want for seen, want in cells)
    freedom = max(1, len(cells) - 1)
    spread = 2 / (9 * freedom)
    assert statistic < freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3 + 1e-9, (statistic, freedom)


FOUR = torch.tensor([0.3, 0.1, 0.4, 0.2]).log()


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"), [(0.6, 0, {0, 2}), (0.39, 0, {2}), (0.95, 2, {0, 2}), (0.75, 0, {0, 2, 3}), (1.0, 3, {0, 2, 3})]
)
def test_smp_3_the_token_that_crosses_top_p_stays(temperature, top_p, top_k, kept):
    found = counts(FOUR, 10000, temperature=temperature, top_p=top_p, top_k=top_k)
    assert set(found) == kept
    assert_fits(found, exact(FOUR, temperature, top_p, top_k))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize(("top_p", "top_k"), [(0.3, 0), (0.9, 0), (0.9, 20), (0.998, 0), (1.0, 0), (1.0, 40), (5.0, 0)])
def test_draws_follow_float64_arithmetic(temperature, top_p, top_k):
    logits = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 2
    assert_fits(counts(logits, 10000, temperature=temperature, top_p=top_p, top_k=top_k), exact(logits, temperature, top_p, top_k))


@pytest.mark.parametrize(("spread", "top_p"), [(3.0, 0.5), (2.0, 0.3), (1.0, 0.8), (1.0, 1.0)])
def test_draws_from_a_whole_vocabulary_whatever_the_width_of_the_nucleus(spread, top_p):
    # Nuclei of tens, hundreds and tens of thousands of tokens: first candidates, second candidates, histogram, no cut.
    logits = torch.randn(65536, generator=torch.Generator().manual_seed(5)) * spread
    found, expected = counts(logits, 3000, rows=30, top_p=top_p), exact(logits, 1.0, top_p)
    assert all(expected[token] > 0 for token in found)
    assert_fits(*in_groups(found, expected))


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(1.0, 0.6, 0), (0.8, 0.85, 0), (1.3, 0.9, 12), (1.0, 0.998, 0)])
def test_draws_follow_the_rwkv_package(temperature, top_p, top_k):
    utils = peers.load("rwkv.utils")
    import numpy

    numpy.random.seed(1)
    logits = torch.randn(200, generator=torch.Generator().manual_seed(8)) * 2
    theirs = collections.Counter(
        utils.PIPELINE.sample_logits(None, logits.clone(), temperature=temperature, top_p=top_p, top_k=top_k) for _ in range(5000)
    )
    expected = exact(logits, temperature, top_p, top_k)
    assert_fits(theirs, expected)
    assert_fits(counts(logits, 5000, temperature=temperature, top_p=top_p, top_k=top_k), expected)


def test_a_draw_does_not_depend_on_how_many_candidates_are_looked_at(monkeypatch):
    logits = torch.randn(4, 65536, generator=torch.Generator().manual_seed(6)) * 2.5
    one = torch.ones(4, dtype=torch.float64)
    for top_p, top_k in ((0.4, math.inf), (0.9, 30), (0.4, 200), (0.02, math.inf)):
        for u in (0.0, 0.31, 0.77, 1 - 2**-53):
            rules = draw.Rules(one, one * top_p, one * top_k, one * u)
            texts = [draw.draw_restricted(logits, rules, [width] * 4)[0].tolist() for width in (256, 1024, 0)]
            assert texts[0] == texts[1] == texts[2]


def test_equal_logits_at_the_edge_of_top_k_leave_exactly_top_k():
    logits = torch.zeros(65536)
    logits[[9, 500, 40000]] = 5.0
    logits[[11, 12]] = 7.0
    for top_p in (1.0, 0.9999):
        assert set(counts(logits, 300, rows=30, top_p=top_p, top_k=4)) == {9, 11, 12, 500}


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"temperature": 0.0001}, {"top_p": 0.0001}])
def test_smp_1_greedy_settings_give_the_maximum_beside_a_random_neighbour(params):
    generator = torch.Generator().manual_seed(2)
    sampler = make_sampler([SamplingParams(**{**PLAIN, **params}), SamplingParams(temperature=1.5, top_p=1.0, seed=1, **PLAIN)], 65536)
    base = torch.randn(65536, generator=generator) * 3
    neighbour = set()
    for _ in range(12):
        own, other = sampler.sample(base.repeat(2, 1), [0, 1]).tokens.tolist()
        assert own == int(base.argmax())
        neighbour.add(other)
    assert len(neighbour) > 8


def reference_text(logits: torch.Tensor, params: SamplingParams, prompt: tuple[int, ...]) -> list[int]:
    """Greedy text under penalties, by the rules and in float64, one Python dict per text."""
    occurrence: dict[int, float] = {}
    text = []

    def count(token: int) -> None:
        for other in occurrence:
            occurrence[other] *= params.penalty_decay
        occurrence[token] = occurrence.get(token, 0.0) + (0.0 if token in (33, 10, *range(49, 59)) else 1.0)

    for token in prompt if params.global_penalty else ():
        count(token)
    for row in logits.double():
        row = row.clone()
        for token, bias in params.logit_bias:
            row[token] += -math.inf if bias <= -100 else bias
        for token, number in occurrence.items():
            row[token] -= params.presence_penalty + params.frequency_penalty * number
        if params.ignore_eos:
            row[0] = -math.inf
        text.append(int(row.argmax()))
        count(text[-1])
    return text


@pytest.mark.parametrize(
    "params",
    [
        {"frequency_penalty": 1.0},
        {"frequency_penalty": 0.7, "presence_penalty": 0.4, "penalty_decay": 0.9},
        {"frequency_penalty": 2.0, "penalty_decay": 0.0},
        {"frequency_penalty": 0.5, "penalty_decay": 0.3},
        {"frequency_penalty": 0.0, "presence_penalty": 1.5},
        {"frequency_penalty": -0.5, "presence_penalty": -0.3, "penalty_decay": 0.5},
        {"frequency_penalty": 1.0, "presence_penalty": 0.3, "global_penalty": True, "penalty_decay": 0.98},
        {"frequency_penalty": 1.0, "logit_bias": ((7, -100.0), (9, 3.0), (12, -2.5)), "ignore_eos": True},
    ],
)
def test_penalties_follow_the_rules(params):
    settings = SamplingParams(temperature=0, **params)
    logits = torch.randn(120, 64, generator=torch.Generator().manual_seed(4)) + torch.linspace(0, 3, 64)
    logits[:, [0, 10, 33, 50]] += 2
    prompt = (5, 63, 63, 10, 50, 61)
    sampler = make_sampler([SamplingParams(temperature=0), settings], 64, prompt=prompt)
    text = [int(sampler.sample(row.repeat(1, 1), [1]).tokens) for row in logits]
    assert text == reference_text(logits, settings, prompt)


def test_a_slot_keeps_nothing_of_the_request_before():
    old = SamplingParams(temperature=0, presence_penalty=50.0, logit_bias=((3, -100.0),), ignore_eos=True)
    sampler = make_sampler([old], 64)
    logits = torch.linspace(1, 0, 64)
    for _ in range(5):
        sampler.sample(logits.repeat(1, 1), [0])
    sampler.admit(0, Request(1, (1,), SamplingParams(temperature=0)))
    assert int(sampler.sample(logits.repeat(1, 1), [0]).tokens) == 0


def test_ids_from_the_limit_on_and_forbidden_ids_never_come_out():
    settings = [
        SamplingParams(temperature=t, top_p=p, seed=s, logit_bias=((2, -100.0),), **PLAIN)
        for s, (t, p) in enumerate([(0, 1), (1, 1), (9, 0.99)])
    ]
    sampler = make_sampler(settings, 64, limit=6)
    logits = torch.zeros(64)
    logits[6:] = 50
    logits[2] = 40
    for _ in range(60):
        assert set(sampler.sample(logits.repeat(3, 1), [0, 1, 2]).tokens.tolist()) <= {0, 1, 3, 4, 5}


def bitmask(tokens: set[int], vocab: int) -> bytes:
    words = [0] * -(-vocab // 32)
    for token in tokens:
        words[token // 32] |= 1 << token % 32
    return b"".join(word.to_bytes(4, "little") for word in words)


def test_an_allowed_mask_binds_its_row_alone():
    settings = [SamplingParams(temperature=1.0, top_p=p, seed=s, **PLAIN) for s, p in enumerate([1.0, 0.9, 1.0])]
    sampler = make_sampler(settings, 70)
    mask = bitmask({3, 31, 32, 69}, 70)
    seen: list[set[int]] = [set(), set(), set()]
    for _ in range(80):
        result = sampler.sample(torch.zeros(3, 70), [0, 1, 2], {0: mask, 1: mask})
        for row, token in enumerate(result.tokens.tolist()):
            seen[row].add(token)
    assert seen[0] == seen[1] == {3, 31, 32, 69}
    assert len(seen[2]) > 20
    nothing = sampler.sample(torch.zeros(2, 70), [0, 2], {0: bytes(12)})
    assert nothing.failures == {0: NOTHING_ALLOWED}


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_p": 0.5}, {"top_p": 1.0}])
def test_smp_5_a_row_that_is_not_finite_fails_alone(value, params):
    settings = [SamplingParams(seed=s, **{**PLAIN, **params}) for s in range(3)]
    sampler, undisturbed = make_sampler(settings, 300), make_sampler(settings, 300)
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(1))
    expected = undisturbed.sample(logits.clone(), [0, 1, 2]).tokens.tolist()
    logits[1, 17] = value
    result = sampler.sample(logits, [0, 1, 2])
    assert result.failures == {1: NOT_FINITE}
    assert [result.tokens.tolist()[i] for i in (0, 2)] == [expected[0], expected[2]]


def test_smp_5_a_poisoned_request_fails_and_its_neighbours_finish(executor, drive, tmp_path):
    script = [33, 1097, 40640, 36, 37, 38, 39, 40, 41]
    engine = executor(tiny.write(tmp_path / "poison.pth", tiny.poison_checkpoint(script, trigger=40640)))
    greedy = SamplingParams(temperature=0, frequency_penalty=0)
    requests = [Request(0, (36,), greedy), Request(1, (33,), greedy), Request(2, (37,), greedy)]
    outcome = drive(engine, requests, count=4)
    assert list(outcome.failures) == [1] and "not finite" in outcome.failures[1]
    assert outcome.tokens == [[37, 38, 39, 40], [1097, 40640], [38, 39, 40, 41]]
    assert drive(engine, [Request(3, (38,), greedy)], count=3, slots=[1]).tokens == [[39, 40, 41]]


def test_a_seed_decides_the_draws_whatever_the_slot_and_the_neighbours(f1, executor, drive):
    engine = executor(f1)
    own = Request(0, (5, 6, 7), SamplingParams(seed=42, top_p=0.8))
    others = [Request(i, (8 + i,), SamplingParams(seed=i, temperature=1.3, top_p=1.0)) for i in range(1, 6)]
    alone = drive(engine, [own], 24).tokens[0]
    assert drive(engine, [*others, own], 24).tokens[5] == alone
    assert drive(engine, [own, *others], 24, slots=[6, 1, 2, 3, 4, 5], chunk=1).tokens[0] == alone
    assert drive(engine, [Request(0, (5, 6, 7), SamplingParams(seed=43, top_p=0.8))], 24).tokens[0] != alone


def test_smp_6_equal_prompts_without_a_seed_give_different_texts(f1, executor, drive):
    engine = executor(f1, rows=65)
    requests = [Request(i, (5, 6, 7), SamplingParams(top_p=1.0)) for i in range(64)]
    runs = [{tuple(text) for text in drive(engine, requests, 8).tokens} for _ in range(2)]
    assert len(runs[0]) == len(runs[1]) == 64
    assert not runs[0] & runs[1]


def test_smp_6_draws_are_even_over_seeds_and_over_steps():
    cells: collections.Counter[int] = collections.Counter(int(draw.uniform(seed, step) * 16) for seed in range(100) for step in range(100))
    assert_fits(cells, [1 / 16] * 16)
    pairs = collections.Counter(
        int(draw.uniform(seed, step) * 4) * 4 + int(draw.uniform(seed, step + 1) * 4) for seed in range(100) for step in range(0, 100, 2)
    )
    assert_fits(pairs, [1 / 16] * 16)
    assert draw.uniform(-(2**70), 3) != draw.uniform(2**70, 3)


def test_logprobs_are_of_the_raw_logits(f1, executor, drive):
    engine = executor(f1)
    biased = SamplingParams(temperature=0, logit_bias=((777, 90.0),), logprobs=3)
    plain = SamplingParams(temperature=0, frequency_penalty=0, logprobs=3)
    requests = [Request(0, (5, 6, 7), biased), Request(1, (5, 6, 7), plain), Request(2, (5, 6, 7), GREEDY_WITHOUT)]
    outcome = drive(engine, requests, count=1)
    forced, free = outcome.logprobs[0][0], outcome.logprobs[1][0]
    assert outcome.tokens[0] == [777] and forced.token_id == 777
    assert forced.top == free.top and len(free.top) == 3
    assert free.top[0] == (free.token_id, free.logprob) and forced.logprob < free.top[2][1]
    assert not outcome.logprobs[2]


GREEDY_WITHOUT = SamplingParams(temperature=0)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_prompt_logprobs_are_those_of_the_tokens_when_generated(chunk, f1, executor, drive):
    engine = executor(f1)
    settings = SamplingParams(temperature=0, frequency_penalty=0, logprobs=2)
    first = drive(engine, [Request(0, (5, 6, 7), settings)], count=10)
    whole = (5, 6, 7, *first.tokens[0])
    asked = SamplingParams(temperature=0, frequency_penalty=0, logprobs=2, prompt_logprobs=True)
    second = drive(engine, [Request(0, (9, 9), settings), Request(1, whole, asked)], count=1, chunk=chunk)
    entries = second.prompt_logprobs[1]
    assert [entry.token_id for entry in entries] == list(whole[1:])
    assert not second.prompt_logprobs[0]
    for told, seen in zip(entries[2:], first.logprobs[0], strict=True):
        assert told.logprob == pytest.approx(seen.logprob, abs=1e-4)
        assert [token for token, _ in told.top] == [token for token, _ in seen.top]
