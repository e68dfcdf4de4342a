"""The sampling kernel: distributions against float64 arithmetic, penalties and greedy choices against the torch reference."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

from albatross_plugin.engine.messages import TokenLogprobs
from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.model.penalties import Penalties
from albatross_plugin.model.sampler import NOT_FINITE, NOTHING_ALLOWED

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

from albatross_plugin.model.cuda_sampler import CudaSampler, sampler_bytes

DEVICE = torch.device("cuda")
PLAIN = {"frequency_penalty": 0.0}
FOUR = torch.tensor([0.3, 0.1, 0.4, 0.2]).log()


class Rows:
    """A sampler with one request per slot, and the buffers of an executor around it."""

    def __init__(
        self, params: Sequence[SamplingParams], vocab: int, limit: int | None = None, prompt: tuple[int, ...] = (1,), slots: int = 0
    ) -> None:
        count = max(slots, len(params)) + 1
        self.sampler = CudaSampler(count, vocab, vocab if limit is None else limit, DEVICE)
        self.last = torch.zeros(count, dtype=torch.int32, device=DEVICE)
        self.results = torch.full((count, 4), -77, dtype=torch.int32, device=DEVICE)
        self.tops = torch.full((count, 2, 20), -77, dtype=torch.int32, device=DEVICE)
        self.failures: dict[int, str] = {}
        self.logprobs: dict[int, TokenLogprobs] = {}
        self.prompt = prompt
        self.admit(list(enumerate(params)))

    def admit(self, params: Sequence[tuple[int, SamplingParams]]) -> None:
        self.sampler.admit_many([(slot, Request(slot, self.prompt, item)) for slot, item in params])

    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[int]:
        index = torch.tensor(slots, dtype=torch.int32, device=DEVICE)
        self.sampler.sample(logits.to(DEVICE).contiguous(), index, self.last, self.results, self.tops)
        wanted = self.sampler.wants_logprobs(slots)
        tops = self.tops[: len(slots)].cpu() if wanted else None
        tokens, self.failures, self.logprobs = self.sampler.read(self.results[: len(slots)].cpu(), tops, slots)
        assert self.last[index.long()].tolist() == tokens
        return tokens


def counts(logits: Tensor, draws: int, rows: int = 500, **params: float) -> collections.Counter[int]:
    """How often each token came out of ``draws`` draws, ``rows`` at a time, each row with a seed of its own."""
    one = Rows([SamplingParams(seed=seed, **{**PLAIN, **params}) for seed in range(rows)], logits.numel())
    found: collections.Counter[int] = collections.Counter()
    batch = logits.repeat(rows, 1).to(DEVICE)
    for _ in range(draws // rows):
        found.update(one.sample(batch, range(rows)))
    return found


def exact(logits: Tensor, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> list[float]:
    """The distribution that the rules ask for, in float64: nucleus, then top_k, then temperature."""
    p = torch.softmax(logits.double(), 0).tolist()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if top_p < 1:
        mass = list(itertools.accumulate(p[i] for i in order))
        least = p[order[next(n for n, reached in enumerate(mass) if reached >= top_p - 1e-9)]]
        order = [i for i in order if p[i] >= least]
    order = order[:top_k] if top_k else order
    most = p[order[0]]
    weights = dict.fromkeys(range(len(p)), 0.0) | {i: (p[i] / most) ** (1 / temperature) for i in order}
    total = math.fsum(weights.values())
    return [weights[i] / total for i in range(len(p))]


def assert_fits(found: collections.Counter[int], expected: list[float], cells: int = 300) -> None:
    """Chi-square at the 0.1 % level (Wilson and Hilferty's approximation) over groups of tokens that are about as likely."""
    assert all(expected[token] > 0 for token in found), "a token came out that the filters exclude"
    total = sum(found.values())
    least = max(8.0, total / cells)
    groups, seen, want = [], 0, 0.0
    for token in sorted(range(len(expected)), key=lambda i: -expected[i]):
        seen, want = seen + found[token], want + total * expected[token]
        if want >= least:
            groups.append((seen, want))
            seen, want = 0, 0.0
    groups[-1] = (groups[-1][0] + seen, groups[-1][1] + want)
    statistic = sum((seen - want) ** 2 / want for seen, want in groups)
    freedom = max(1, len(groups) - 1)
    spread = 2 / (9 * freedom)
    assert statistic < freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3 + 1e-9, (statistic, freedom)


def random_logits(rows: int, vocab: int, seed: int, spread: float = 2.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("vocab", [65536, 50304, 1000])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_greedy_is_the_first_maximum(vocab: int, rows: int) -> None:
    logits = random_logits(rows, vocab, seed=rows)
    tied = logits.round()
    one = Rows([SamplingParams(temperature=0, **PLAIN)] * rows, vocab)
    slots = list(reversed(range(rows)))
    assert one.sample(logits, slots) == logits.argmax(1).tolist()
    assert one.sample(tied, slots) == [int((row == row.max()).nonzero()[0]) for row in tied]
    assert one.sampler.memory_bytes == sampler_bytes(rows + 1, vocab)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"), [(0.6, 0, {0, 2}), (0.39, 0, {2}), (0.95, 2, {0, 2}), (0.75, 0, {0, 2, 3}), (1.0, 3, {0, 2, 3})]
)
def test_smp_3_the_token_that_crosses_top_p_stays(temperature: float, top_p: float, top_k: int, kept: set[int]) -> None:
    found = counts(FOUR, 10000, temperature=temperature, top_p=top_p, top_k=top_k)
    assert set(found) == kept
    assert_fits(found, exact(FOUR, temperature, top_p, top_k))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize(("top_p", "top_k"), [(0.3, 0), (0.9, 0), (0.9, 20), (0.998, 0), (1.0, 0), (1.0, 40), (5.0, 0)])
def test_100_000_draws_follow_float64_arithmetic(temperature: float, top_p: float, top_k: int) -> None:
    logits = random_logits(1, 1000, seed=3)[0]
    found = counts(logits, 100_000, temperature=temperature, top_p=top_p, top_k=top_k)
    assert_fits(found, exact(logits, temperature, top_p, top_k))


@pytest.mark.parametrize(("spread", "top_p", "top_k"), [(3, 0.5, 0), (2, 0.3, 0), (1, 0.8, 0), (1, 1, 0), (0.3, 0.9, 0), (1, 1, 700)])
def test_draws_from_a_whole_vocabulary_whatever_the_width_of_the_nucleus(spread: float, top_p: float, top_k: int) -> None:
    # From tens to tens of thousands of tokens: all of them listed in shared memory, or read again.
    logits = random_logits(1, 65536, seed=5, spread=spread)[0]
    assert_fits(counts(logits, 25_000, rows=250, top_p=top_p, top_k=top_k), exact(logits, 1.0, top_p, top_k))


@pytest.mark.parametrize("top_p", [1.0, 0.9999])
def test_equal_logits_at_the_edge_of_top_k_leave_exactly_top_k(top_p: float) -> None:
    logits = torch.zeros(65536)
    logits[[9, 500, 40000]] = 5.0
    logits[[11, 12]] = 7.0
    assert set(counts(logits, 2000, rows=200, top_p=top_p, top_k=4)) == {9, 11, 12, 500}


def test_a_flat_row_keeps_the_first_ids_up_to_top_k() -> None:
    found = counts(torch.zeros(65536), 20_000, rows=200, top_p=1.0, top_k=600)
    assert set(found) <= set(range(600))
    assert_fits(found, [1 / 600] * 600 + [0.0] * (65536 - 600))


def test_a_nucleus_among_logits_that_hardly_differ() -> None:
    # One bin of the histogram holds them all, so the cutoff is found in the finer ones.
    logits = 1 + random_logits(1, 65536, seed=9, spread=1e-4)[0]
    assert_fits(counts(logits, 20_000, rows=200, top_p=0.25), exact(logits, 1.0, 0.25))


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"temperature": 0.0001}, {"top_p": 0.0001}])
def test_smp_1_greedy_settings_give_the_maximum_beside_a_random_neighbour(params: dict[str, float]) -> None:
    one = Rows([SamplingParams(**{**PLAIN, **params}), SamplingParams(temperature=1.5, top_p=1.0, seed=1, **PLAIN)], 65536)
    base = random_logits(1, 65536, seed=2, spread=3)
    neighbour = set()
    for _ in range(12):
        own, other = one.sample(base.repeat(2, 1), [0, 1])
        assert own == int(base.argmax())
        neighbour.add(other)
    assert len(neighbour) > 8


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
        {"frequency_penalty": 0.0, "logit_bias": tuple((token, token % 7 / 4) for token in range(4000))},
        {"frequency_penalty": 0.4, "presence_penalty": 0.2, "logit_bias": tuple((token, token % 5 / 4) for token in range(100, 2000))},
    ],
)
@pytest.mark.parametrize("vocab", [64, 65536])
def test_penalties_are_those_of_the_reference(params: dict[str, Any], vocab: int) -> None:
    if "logit_bias" in params:
        params = {**params, "logit_bias": tuple(pair for pair in params["logit_bias"] if pair[0] < vocab)}
    settings = SamplingParams(temperature=0, **params)
    prompt = (5, 63, 63, 10, 50, 61)
    one = Rows([SamplingParams(temperature=0), settings, SamplingParams()], vocab, prompt=prompt)
    reference = Penalties(4, vocab, vocab, torch.device("cpu"))
    reference.admit(1, settings, prompt)
    logits = random_logits(60, vocab, seed=4) + torch.linspace(0, 3, vocab)
    logits[:, [0, 10, 33, 50]] += 2
    for row in logits:
        adjusted = row.repeat(1, 1)
        reference.apply(adjusted, [1])
        token = one.sample(row.repeat(1, 1), [1])[0]
        assert float(adjusted.max() - adjusted[0, token]) < 1e-3
        reference.record([1], torch.tensor([token]))
    untouched = one.sampler._counts[[0, 2, 3]], one.sampler._bias[[0, 2, 3]]
    assert not any(table.any() for table in untouched)
    banned = torch.isinf(reference.offset[1])
    assert torch.allclose(one.sampler._bias[1].cpu()[~banned], reference.offset[1][~banned], atol=1e-5)
    if settings.frequency_penalty:
        scale = float(one.sampler._numbers[1, 5])
        assert scale == pytest.approx(reference._scale[1], rel=1e-4)
        assert torch.allclose(one.sampler._counts[1].cpu() * scale, reference.counts[1] * reference._scale[1], atol=1e-4)


def test_a_slot_keeps_nothing_of_the_request_before() -> None:
    old = SamplingParams(temperature=0, presence_penalty=50.0, logit_bias=((3, -100.0),), ignore_eos=True, logprobs=2)
    one = Rows([old], 64)
    logits = torch.linspace(1, 0, 64)
    for _ in range(5):
        one.sample(logits.repeat(1, 1), [0])
    one.admit([(0, SamplingParams(temperature=0))])
    assert one.sample(logits.repeat(1, 1), [0]) == [0]
    assert not one.logprobs


def test_ids_from_the_limit_on_and_forbidden_ids_never_come_out() -> None:
    settings = [
        SamplingParams(temperature=t, top_p=p, seed=s, logit_bias=((2, -100.0),), logprobs=20, **PLAIN)
        for s, (t, p) in enumerate([(0, 1), (1, 1), (9, 0.99)])
    ]
    one = Rows(settings, 64, limit=6)
    logits = torch.zeros(64)
    logits[6:] = 50
    logits[2] = 40
    for _ in range(60):
        assert set(one.sample(logits.repeat(3, 1), [0, 1, 2])) <= {0, 1, 3, 4, 5}
    assert [token for token, _ in one.logprobs[1].top] == [2, 0, 1, 3, 4, 5]


def bitmask(tokens: set[int], vocab: int) -> bytes:
    words = [0] * -(-vocab // 32)
    for token in tokens:
        words[token // 32] |= 1 << token % 32
    return b"".join(word.to_bytes(4, "little") for word in words)


def test_an_allowed_mask_binds_its_row_for_one_step() -> None:
    one = Rows([SamplingParams(temperature=1.0, top_p=p, seed=s, **PLAIN) for s, p in enumerate([1.0, 0.9, 1.0])], 72)
    mask = bitmask({3, 31, 32, 69}, 72)
    seen: list[set[int]] = [set(), set(), set()]
    for _ in range(80):
        one.sampler.set_masks({0: mask, 1: mask})
        for row, token in enumerate(one.sample(torch.zeros(3, 72), [0, 1, 2])):
            seen[row].add(token)
    assert seen[0] == seen[1] == {3, 31, 32, 69}
    assert len(seen[2]) > 20
    free = set(itertools.chain(*(one.sample(torch.zeros(3, 72), [0, 1, 2]) for _ in range(20))))
    assert len(free) > 20
    one.sampler.set_masks({0: bytes(12)})
    one.sample(torch.zeros(2, 72), [0, 2])
    assert one.failures == {0: NOTHING_ALLOWED}


@pytest.mark.parametrize("value", [math.inf, math.nan, -math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_p": 0.5}, {"top_p": 1.0}, {"top_k": 3, "top_p": 1.0}])
def test_smp_5_a_row_that_is_not_finite_fails_alone(value: float, params: dict[str, float]) -> None:
    settings = [SamplingParams(seed=s, **{**PLAIN, **params}) for s in range(3)]
    one, undisturbed = Rows(settings, 300), Rows(settings, 300)
    logits = random_logits(3, 300, seed=1)
    expected = undisturbed.sample(logits, [0, 1, 2])
    if value == -math.inf:
        logits[1] = value
    else:
        logits[1, 17] = value
    tokens = one.sample(logits, [0, 1, 2])
    assert one.failures == {1: NOT_FINITE}
    assert tokens == [expected[0], 0, expected[2]]
    one.admit([(1, settings[1])])
    one.sample(random_logits(3, 300, seed=1), [0, 1, 2])
    assert not one.failures


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = random_logits(3, 65536, seed=7)
    logits[2] = logits[2].round()
    biased = SamplingParams(temperature=0, logit_bias=((777, 90.0),), logprobs=3)
    plain = SamplingParams(temperature=0, frequency_penalty=0, logprobs=20)
    tied = SamplingParams(top_p=0.2, frequency_penalty=0, logprobs=0)
    one = Rows([biased, plain, tied], 65536, limit=65530)
    tokens = one.sample(logits, [0, 1, 2])
    wanted = logits.double().log_softmax(1)
    assert tokens[0] == 777
    for row, count in enumerate((3, 20, 0)):
        entry = one.logprobs[row]
        assert entry.token_id == tokens[row]
        assert entry.logprob == pytest.approx(float(wanted[row, tokens[row]]), abs=1e-5)
        best = wanted[row, :65530].topk(count)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_top_logprobs_among_equals_are_the_first_ids() -> None:
    one = Rows([SamplingParams(temperature=0, frequency_penalty=0, logprobs=20)], 65536)
    one.sample(torch.zeros(1, 65536), [0])
    assert [token for token, _ in one.logprobs[0].top] == list(range(20))


@pytest.mark.parametrize("params", [{"top_p": 0.8}, {"top_p": 1.0}, {"top_p": 1.0, "top_k": 50}, {"top_p": 0.9, "temperature": 0.6}])
def test_a_seed_decides_the_draws_whatever_the_slot_and_the_neighbours(params: dict[str, float]) -> None:
    own = SamplingParams(seed=-42, **params)
    texts = []
    for rows, slot in ((1, 0), (7, 3), (320, 311)):
        settings = [SamplingParams(seed=i, temperature=1.3, top_p=1.0) for i in range(rows)]
        settings[slot] = own
        one = Rows(settings, 65536)
        logits = random_logits(24, 65536, seed=11)
        texts.append([one.sample(row.repeat(rows, 1), range(rows))[slot] for row in logits])
    assert texts[0] == texts[1] == texts[2]
    other = Rows([SamplingParams(seed=43, **params)], 65536)
    assert [other.sample(row.repeat(1, 1), [0])[0] for row in random_logits(24, 65536, seed=11)] != texts[0]


def test_smp_6_equal_rows_without_a_seed_give_different_texts() -> None:
    logits = random_logits(1, 65536, seed=12).repeat(64, 1)
    runs = []
    for _ in range(2):
        one = Rows([SamplingParams(top_p=1.0, **PLAIN)] * 64, 65536)
        steps = [one.sample(logits, range(64)) for _ in range(8)]
        runs.append(set(zip(*steps, strict=True)))
    assert len(runs[0]) == len(runs[1]) == 64
    assert not runs[0] & runs[1]


def test_the_same_200_times() -> None:
    settings = [SamplingParams(seed=i, top_p=(0.3, 0.95, 1.0)[i % 3], top_k=(0, 0, 0, 40)[i % 4], logprobs=2) for i in range(48)]
    logits = random_logits(48, 65536, seed=13)
    one = Rows(settings, 65536)
    first = None
    for _ in range(200):
        one.admit(list(enumerate(settings)))
        one.results.fill_(-77)
        one.sample(logits, range(48))
        found = (one.results[:48].clone(), one.tops[:48].clone())
        first = first or found
        assert torch.equal(found[0], first[0]) and torch.equal(found[1], first[1])


def test_rows_in_the_scratch_slot_do_nothing() -> None:
    one = Rows([SamplingParams(seed=1)] * 2, 1000)
    index = torch.tensor([2, 1, 2], dtype=torch.int32, device=DEVICE)
    one.last.fill_(-5)
    one.sampler.sample(torch.full((3, 1000), math.nan, device=DEVICE), index, one.last, one.results, one.tops)
    assert one.results[:, :2].tolist() == [[0, 0], [0, 1], [0, 0]]
    assert one.last.tolist() == [-5, 0, -5]


def test_a_graph_draws_what_single_launches_draw() -> None:
    settings = [SamplingParams(seed=i, top_p=0.9) for i in range(8)]
    logits = random_logits(8, 65536, seed=14).to(DEVICE)
    one, other = Rows(settings, 65536), Rows(settings, 65536)
    expected = [other.sample(logits, range(8)) for _ in range(6)]
    slots = torch.arange(8, dtype=torch.int32, device=DEVICE)
    one.sample(logits, range(8))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one.sampler.sample(logits, slots, one.last, one.results, one.tops)
    found = []
    for _ in range(5):
        graph.replay()
        found.append(one.results[:8, 0].tolist())
    assert found == expected[1:]
