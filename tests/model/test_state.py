"""The state pool: its size, start states from files, and refusals."""

from __future__ import annotations

import pytest
import tiny
import torch

from albatross_plugin.engine.request import Request
from albatross_plugin.errors import RequestError
from albatross_plugin.model.spec import ModelSpec
from albatross_plugin.model.state import StatePool, state_bytes

CPU = torch.device("cpu")


def start_state(layers: int, width: int, seed: int = 4) -> list[torch.Tensor]:
    """As a host keeps it after reading a state file: per layer shifted input, recurrence, shifted input."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(width,), (width // 64, 64, 64), (width,)] * layers
    return [torch.randn(shape, generator=generator) * 0.5 for shape in shapes]


@pytest.mark.parametrize(("layers", "width"), [(2, 128), (12, 768), (3, 2048)])
def test_bytes_of_a_slot_follow_the_formula(layers, width):
    spec = ModelSpec("m", layers, width, 4 * width, 65536)
    expected = layers * (width // 64 * 64 * 64 * 4 + 2 * width * 4)
    assert state_bytes(spec, torch.float32) == expected
    assert state_bytes(spec, torch.float16) == expected - layers * 2 * width * 2
    pool = StatePool(spec, 5, CPU, torch.float32)
    assert pool.memory_bytes == 5 * expected


def test_a_start_state_gives_the_text_that_the_rwkv_package_gives(f1, prompts, executor, greedy, package_greedy):
    state = start_state(2, 128)
    ours = greedy(executor(f1), prompts[:5], state=state)
    assert ours != greedy(executor(f1), prompts[:5])
    assert package_greedy(f1, prompts[:5], state=state) == ours


def test_a_state_comes_back_as_it_was_written_and_reset_clears_it():
    pool = StatePool(ModelSpec("m", 2, 128, 512, 300), 4, CPU, torch.float32)
    state = start_state(2, 128)
    pool.load(1, state)
    assert all(torch.equal(a, b) for a, b in zip(pool.read(1), state, strict=True))
    assert not any(part.any() for part in pool.read(0) + pool.read(2))
    pool.wkv[:, 1] = float("nan")
    pool.reset(1)
    assert not any(part.any() for part in pool.read(1))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], "expected a list of 6 tensors for 2 layers, got 0"),
        (start_state(3, 128), "got 9"),
        (start_state(2, 192), r"entry 0 must be a dense tensor of floats of shape \[128\], got torch.float32 \[192\]"),
        (
            [torch.zeros(128), torch.zeros(64, 64)] + start_state(2, 128)[2:],
            r"entry 1 must be .* of shape \[2, 64, 64\], got torch.float32 \[64, 64\]",
        ),
        ([torch.zeros(128), "x"] + start_state(2, 128)[2:], "entry 1 .* got str"),
        (7, "got int"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(state, message):
    pool = StatePool(ModelSpec("m", 2, 128, 512, 300), 2, CPU, torch.float32)
    with pytest.raises(RequestError, match=message):
        pool.load(0, state)
    assert not any(part.any() for part in pool.read(0))


def test_a_bad_start_state_fails_its_own_request_alone(f1, executor, drive, greedy):
    engine = executor(f1)
    requests = [Request(0, (5, 6, 7)), Request(1, (5, 6, 7), initial_state=start_state(3, 128)), Request(2, (8,))]
    outcome = drive(engine, requests, count=3, chunk=1)
    assert list(outcome.failures) == [1] and "got 9" in outcome.failures[1]
    assert len(outcome.tokens[0]) == len(outcome.tokens[2]) == 3
    fresh = greedy(executor(f1), [[5, 6, 7]], count=4)
    assert greedy(engine, [[5, 6, 7]], count=4, slots=[1]) == fresh


def test_a_slot_that_is_used_again_starts_from_zeros(f1, prompts, executor, greedy):
    engine = executor(f1)
    fresh = greedy(engine, [prompts[3]], slots=[2])
    greedy(engine, prompts, state=start_state(2, 128))
    assert greedy(engine, [prompts[3]], slots=[2]) == fresh


def test_one_token_at_a_time_gives_the_state_of_one_pass(executor, drive, tmp_path):
    path = tiny.write(tmp_path / "m.pth", tiny.random_checkpoint(vocab=300))
    states = []
    for chunk in (1, 5, 100):
        engine = executor(path, limit=300)
        drive(engine, [Request(0, tuple(range(1, 50)))], count=1, chunk=chunk)
        states.append(engine._pool.read(0))
    for other in states[1:]:
        for a, b in zip(states[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
