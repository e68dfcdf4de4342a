"""The forward pass of the CUDA kernels against float64, and against itself in other arrangements."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import tiny

from albatross_plugin.bench.official import official_checkpoint

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

from gpu.card import Model
from gpu.float64_reference import Float64Model, relative_error


def random_ids(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 65530, (count,), generator=generator).tolist()


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    # Captures need a stream of their own.
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("recurrent", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", ["0.1b", "0.4b", "1.5b", "2.9b"])
def test_logits_against_float64(shape: str, recurrent: torch.dtype) -> None:
    checkpoint = official_checkpoint(shape)
    ids = random_ids(512)
    wanted = Float64Model(checkpoint).feed(ids)
    model = Model(checkpoint, 4, 512, recurrent)
    found = model.feed({2: ids})[2]
    error = relative_error(found, wanted)
    print(f"logits of {shape}, state {recurrent}: relative error {error:.2e}")
    assert error < 1e-2


@pytest.mark.parametrize("recurrent", [torch.float16, torch.float32])
def test_drift_of_the_state_over_4096_tokens(recurrent: torch.dtype) -> None:
    """Decoding writes the state back after every token, which is where a narrow type loses something."""
    checkpoint = official_checkpoint("0.4b")
    ids = random_ids(4096)
    reference = Float64Model(checkpoint)
    wanted = reference.feed(ids)[-256:]
    model = Model(checkpoint, 1, 256, recurrent)
    parts = [model.feed({0: [token]}, ragged=False)[0] for token in ids]
    logits = relative_error(torch.cat(parts[-256:]), wanted)
    state = relative_error(model.pool.wkv[:, 0], reference.state)
    print(f"after 4096 tokens with state {recurrent}: state {state:.2e}, logits of the last 256 {logits:.2e}")
    assert logits < 2e-2 and state < 2e-2


@pytest.mark.parametrize("width", [64, 192, 768])
@pytest.mark.parametrize("recurrent", [torch.float16, torch.float32])
def test_decoding_equals_prefill(width: int, recurrent: torch.dtype) -> None:
    """T tokens one by one, in one pass, and cut at every border of the recurrence's chunks."""
    checkpoint = tiny.random_checkpoint(3, width)
    model = Model(checkpoint, 6, 512, recurrent)
    ids = random_ids(67)
    one = torch.cat([model.feed({1: [token]}, ragged=False)[1] for token in ids])
    whole = model.feed({4: ids})[4]
    assert relative_error(whole, one.double()) < 5e-3
    assert relative_error(model.pool.wkv[:, 4], model.pool.wkv[:, 1].double()) < 5e-3
    for cut in (1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 66):
        model.pool.reset(3)
        halves = torch.cat((model.feed({3: ids[:cut]})[3], model.feed({3: ids[cut:]})[3]))
        assert relative_error(halves, whole.double()) < 5e-3, cut
        assert torch.isfinite(halves).all()


def test_neighbours_slots_and_raggedness_do_not_matter() -> None:
    model = Model(tiny.random_checkpoint(3, 256), 320, 4096)
    prompts = {slot: random_ids(1 + slot * 7 % 23, slot) for slot in range(320)}
    untouched = 317
    del prompts[untouched]
    model.pool.wkv[:, untouched] = 3.25
    order = list(prompts)[::-1]
    together = model.feed({slot: prompts[slot] for slot in order})
    assert bool((model.pool.wkv[:, untouched] == 3.25).all())
    for slot in (0, 1, 5, 160, 319):
        alone = Model(tiny.random_checkpoint(3, 256), 4, 256)
        logits = alone.feed({2: prompts[slot]})[2]
        assert relative_error(together[slot], logits.double()) < 5e-3
        assert relative_error(model.pool.wkv[:, slot], alone.pool.wkv[:, 2].double()) < 5e-3


@pytest.mark.parametrize("rows", [1, 2, 31, 32])
@pytest.mark.parametrize("tokens", [1, 2, 255, 256])
def test_krn_6_the_same_batch_is_bit_equal(rows: int, tokens: int) -> None:
    model = Model(tiny.random_checkpoint(2, 128), 32, 32 * 256)
    prompts = {slot: random_ids(tokens, slot) for slot in range(rows)}
    first = None
    for _ in range(50):
        for slot in prompts:
            model.pool.reset(slot)
        logits = torch.cat([part[-1:] for part in model.feed(prompts).values()])
        now = (logits.clone(), model.pool.wkv.clone(), model.pool.att_shift.clone(), model.pool.ffn_shift.clone())
        first = first or now
        for kept, again in zip(first, now, strict=True):
            assert torch.equal(kept, again)


@pytest.mark.parametrize("width", [128, 768, 2048, 4096])
def test_krn_6_two_hundred_decode_steps_are_bit_equal(width: int) -> None:
    model = Model(tiny.random_checkpoint(1, width), 32, 64)
    tokens = random_ids(32)
    model.products.measure(32)
    first = None
    for _ in range(200):
        model.pool.wkv.zero_()
        model.pool.att_shift.zero_()
        model.pool.ffn_shift.zero_()
        for _ in range(2):
            out = model.feed({slot: [token] for slot, token in enumerate(tokens)}, ragged=False)
        now = (torch.cat(list(out.values())), model.pool.wkv[:, :32].clone())
        first = first or now
        assert torch.equal(first[0], now[0]) and torch.equal(first[1], now[1])
