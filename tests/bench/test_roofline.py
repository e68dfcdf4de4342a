"""Bytes, operations and rooflines against numbers worked out by hand, and against the tensors of a checkpoint."""

from __future__ import annotations

import pytest

from albatross_plugin.bench.kernel_cases import mix_work, product_work, rotations, sparse_work, wkv_work
from albatross_plugin.bench.roofline import OFFICIAL, Ceilings, ModelSizes, Work, pass_work, state_bytes, weight_bytes

TINY = ModelSizes(2, 128, (32, 32, 16, 64), vocab=64)
H200 = Ceilings(4171e9, 704e12)


def test_ceilings_take_the_slower_of_the_two() -> None:
    ceilings = Ceilings(100.0, 1000.0)
    assert ceilings.seconds(Work(50.0, 100.0)) == 0.5
    assert ceilings.seconds(Work(50.0, 1000.0)) == 1.0
    assert ceilings.fraction(Work(50.0), 2.0) == 0.25


def test_state_of_a_sequence() -> None:
    assert state_bytes(TINY, "fp16") == 2 * (2 * 64 * 64 * 2 + 2 * 128 * 2)
    assert state_bytes(TINY, "fp32") == 2 * (2 * 64 * 64 * 4 + 2 * 128 * 2)


def test_pass_counts_weights_once_and_states_twice() -> None:
    one, four = pass_work(TINY, 1), pass_work(TINY, 4)
    assert one.bytes == weight_bytes(TINY) + 2 * state_bytes(TINY, "fp16") + 2 * 64
    assert four.bytes - one.bytes == 3 * (2 * state_bytes(TINY, "fp16") + 2 * 64)
    assert four.flops == 4 * one.flops
    # Of a prompt every token passes the layers, and the last one the head.
    head = 2 * 64 * 128
    assert pass_work(TINY, 1, 4).flops == 4 * (one.flops - head) + head
    assert pass_work(TINY, 1, 4).bytes == one.bytes


@pytest.mark.parametrize(
    ("model", "state", "rates"),
    [
        ("1.5b", "fp16", (1490, 41_600, 119_600, 191_000, 250_500)),
        ("7.2b", "fp16", (300, 8_900, 29_200, 50_600, 50_600)),
    ],
)
def test_rooflines_of_the_official_shapes(model: str, state: str, rates: tuple[int, ...]) -> None:
    found = [rows / H200.seconds(pass_work(OFFICIAL[model], rows, 1, state)) for rows in (1, 32, 128, 320, 960)]
    assert found == pytest.approx(rates, rel=3e-3)


def test_weights_are_those_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from albatross_plugin.bench.official import official_checkpoint
    from albatross_plugin.model.spec import read_spec

    monkeypatch.setitem(OFFICIAL, "tiny", TINY)
    checkpoint = official_checkpoint("tiny", device="cpu", zeros=0.88)
    spec = read_spec("tiny", checkpoint)
    assert (spec.n_layer, spec.n_embd, spec.n_ffn, spec.vocab_size) == (2, 128, 512, 64)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in checkpoint.values())
    # The first layer has no value residual and the embedding's norm; the embedding itself is not read as a whole.
    others = ("emb.", "blocks.0.ln0", "blocks.0.att.v")
    numbers = sum(tensor.numel() for key, tensor in checkpoint.items() if not key.startswith(others) or "value" in key)
    residual = 2 * 128 * 16 + 128
    assert weight_bytes(TINY) == 2 * (numbers + residual)


def test_hidden_values_are_as_sparse_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from albatross_plugin.bench.official import official_checkpoint

    monkeypatch.setitem(OFFICIAL, "tiny", ModelSizes(1, 256, (32, 32, 32, 32), vocab=64))
    checkpoint = {key: tensor.float() for key, tensor in official_checkpoint("tiny", device="cpu", zeros=0.88).items()}
    generator = torch.Generator().manual_seed(1)
    norm = checkpoint["blocks.0.ln2.weight"], checkpoint["blocks.0.ln2.bias"]
    now, before = (torch.nn.functional.layer_norm(torch.randn(2000, 256, generator=generator), (256,), *norm) for _ in range(2))
    mixed = now + (before - now) * checkpoint["blocks.0.ffn.x_k"].flatten()
    zeros = (mixed @ checkpoint["blocks.0.ffn.key.weight"].T <= 0).float().mean().item()
    assert zeros == pytest.approx(0.88, abs=0.01)


def test_work_of_kernels() -> None:
    sizes = OFFICIAL["1.5b"]
    step = wkv_work(sizes, 320, 1, "fp16")
    matrices = 320 * 32 * 64 * 64 * 2 * 2
    assert step.bytes == matrices + 2 * 2048 * (9 * 320 + 8)
    assert step.flops == 320 * 32 * 64 * 64 * 8
    assert wkv_work(sizes, 320, 1, "fp32").bytes - step.bytes == matrices
    assert mix_work(sizes, 32, 32, 6).bytes == 2 * 2048 * (32 * 7 + 64 + 8)
    assert product_work(4, 8, 16) == Work(2 * (8 * 16 + 4 * 8 + 4 * 16), 2 * 4 * 8 * 16)
    assert product_work(4, 8, 16, 3).bytes == 3 * product_work(4, 8, 16).bytes
    assert product_work(4, 8, 16, added=True).bytes - product_work(4, 8, 16).bytes == 2 * 4 * 16
    assert product_work(4, 8, 16, out_bytes=4).bytes - product_work(4, 8, 16).bytes == 2 * 4 * 16
    one, four = sparse_work(1, 1000, 64), sparse_work(4, 1000, 64)
    assert one.bytes == pytest.approx(2 * (120 * 64 + 1000 + 128)) and four.flops == pytest.approx(4 * one.flops)
    assert one.bytes < four.bytes < 4 * one.bytes


def test_buffers_in_turn_are_larger_than_the_cache() -> None:
    assert rotations(10, 100) == 30
    assert rotations(1e9, 100) == 2
    assert rotations(1, 1 << 30) == rotations(2, 1 << 30) == 256
