"""What is not an RWKV-7 model is refused in words, at once, and nothing in the file is run."""

from __future__ import annotations

import logging
import os
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.errors import CheckpointError, DeviceError
from albatross_plugin.model.checkpoint import check_torch, open_checkpoint
from albatross_plugin.model.executor import TorchExecutor
from albatross_plugin.model.spec import read_spec

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def good() -> State:
    return tiny.random_checkpoint(layers=3, vocab=300)


def load(path: Path, limit: int = 300, rows: int = 3) -> TorchExecutor:
    return TorchExecutor(WorkerSpec("", str(path), "cpu", 0, rows, limit, 1), lambda loaded, total: None)


def refusal(path: Path, limit: int = 300) -> str:
    started = time.monotonic()
    with pytest.raises(CheckpointError) as info:
        load(path, limit)
    assert time.monotonic() - started < 5
    assert path.name in str(info.value)
    return str(info.value)


def without(*keys: str) -> Callable[[State], State]:
    return lambda state: {key: value for key, value in state.items() if key not in keys}


def with_(**tensors: Tensor) -> Callable[[State], State]:
    return lambda state: {**state, **{key.replace("__", "."): value for key, value in tensors.items()}}


def older(**extra: str) -> Callable[[State], State]:
    """Keys as an older generation has them: none of version 7, some of its own."""

    def change(state: State) -> State:
        kept = {key: value for key, value in state.items() if "att." not in key or key.endswith("key.weight")}
        return {**kept, **{f"blocks.0.att.{name}": torch.zeros(128) for name in extra}}

    return change


REFUSALS: dict[str, tuple[Callable[[State], object], str]] = {
    "version 4": (older(time_decay="", time_first="", time_mix_k=""), "RWKV-4 model.*blocks.0.att.r_k"),
    "version 5": (lambda s: {**older(time_decay="", time_faaaa="")(s), "blocks.0.att.ln_x.weight": torch.zeros(128)}, "RWKV-5 model"),
    "version 6": (lambda s: {**older(time_decay="", time_maa_x="")(s), "blocks.0.att.ln_x.weight": torch.zeros(128)}, "RWKV-6 model"),
    "another model": (lambda s: {"transformer.wte.weight": torch.zeros(4, 4)}, "no key blocks.0.att.r_k"),
    "empty dict": (lambda s: {}, "holds no tensors"),
    "list": (lambda s: list(s.values()), "holds a list, not a dict"),
    "a tensor": (lambda s: torch.zeros(3), "holds a Tensor"),
    "head size 32": (with_(blocks__0__att__r_k=torch.zeros(4, 32)), "blocks.0.att.r_k has shape .4, 32.*head size is 32"),
    "no embedding": (without("emb.weight"), "no emb.weight"),
    "no head": (without("head.weight"), "head.weight is missing"),
    "no ffn": (without("blocks.0.ffn.key.weight"), "blocks.0.ffn.key.weight is missing"),
    "missing middle layer": (
        lambda s: {k: v for k, v in s.items() if "blocks.1." not in k},
        r"blocks\.1\.att\.r_k is missing.*but there is blocks\.2\.",
    ),
    "a layer far beyond the others": (
        with_(blocks__99999999__att__r_k=torch.zeros(2, 64)),
        r"blocks\.3\.att\.r_k is missing.*there is blocks\.99999999\.att\.r_k",
    ),
    "a layer beyond all numbers": (lambda s: {**s, f"blocks.{'9' * 5000}.ln1.weight": torch.zeros(128)}, r"blocks\.3\.att\.r_k is missing"),
    "a layer number that is none": (with_(blocks__007__att__r_k=torch.zeros(2, 64)), r"blocks\.007\.att\.r_k is not part"),
    "many layers of one key": (
        lambda s: {**s, **{f"blocks.{i}.ln1.weight": s["blocks.0.ln1.weight"] for i in range(3, 20000)}},
        r"blocks\.3\.att\.r_k is missing",
    ),
    "missing vector": (without("blocks.2.att.k_a"), "blocks.2.att.k_a is missing"),
    "DeepEmbed": (with_(blocks__0__ffn__s_emb__weight=torch.zeros(300, 32)), "blocks.0.ffn.s_emb.weight.* is not part of RWKV-7"),
    "two unknown keys": (with_(zeta=torch.zeros(1), alpha=torch.zeros(1)), "alpha and 1 more is not part"),
    "flat embedding": (with_(emb__weight=torch.zeros(300)), "emb.weight has shape 300, expected two dimensions"),
    "a width that is no whole number of heads": (
        lambda s: {k: v.narrow(1, 0, 100) if k in ("emb.weight", "head.weight") else v for k, v in s.items()},
        "emb.weight is 100 wide, which is no multiple of 64",
    ),
    "head of another size": (with_(head__weight=torch.zeros(200, 128)), "head.weight has shape 200 x 128, expected 300 x 128"),
    "square of another size": (
        with_(blocks__1__att__key__weight=torch.zeros(128, 64)),
        "blocks.1.att.key.weight has shape 128 x 64, expected 128 x 128",
    ),
    "vector of another size": (with_(blocks__1__att__x_r=torch.zeros(1, 1, 64)), "blocks.1.att.x_r has shape 1 x 1 x 64, expected 128"),
    "ranks that do not fit": (with_(blocks__1__att__w2=torch.zeros(16, 128)), "blocks.1.att.w2 has shape 16 x 128, expected 32 x 128"),
    "integers": (with_(blocks__1__ln1__weight=torch.zeros(128, dtype=torch.int8)), "blocks.1.ln1.weight holds int8"),
    "a converted file": (lambda s: {**s, "_strategy": "cpu fp32", "_version": 0.7, "_rescale_layer": 0}, "re-convert the model"),
    "a sparse tensor": (with_(emb__weight=torch.zeros(300, 128).to_sparse()), "emb.weight is not a plain dense tensor"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_lod_1_what_is_not_rwkv_7_is_refused_with_its_key(case, good, tmp_path):
    change, expected = REFUSALS[case]
    torch.save(change(dict(good)), tmp_path / "model.pth")
    assert re.search(expected, refusal(tmp_path / "model.pth"))


def test_lod_1_a_good_model_loads_after_a_refused_one(good, tmp_path):
    torch.save({}, tmp_path / "model.pth")
    refusal(tmp_path / "model.pth")
    tiny.write(tmp_path / "model.pth", good)
    load(tmp_path / "model.pth").close()


def test_lod_2_a_model_with_fewer_rows_than_the_tokenizer_is_refused_with_both_sizes(tmp_path):
    path = tiny.write(tmp_path / "small.pth", tiny.random_checkpoint(layers=1, vocab=50304))
    text = refusal(path, limit=65530)
    assert "50304" in text and "65529" in text


@pytest.mark.parametrize("kind", ["truncated", "half a header", "empty", "text", "zip of something else", "damaged middle"])
def test_damaged_files_are_refused_with_words_that_desktop_clients_know(kind, good, tmp_path):
    path = tiny.write(tmp_path / "model.pth", good)
    whole = path.read_bytes()
    if kind == "zip of something else":
        import zipfile

        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("hello.txt", "hello")
    else:
        middle = whole[:64] + b"\xff" * 400 + whole[464:]
        contents = {
            "truncated": whole[: len(whole) // 2],
            "half a header": whole[:10],
            "empty": b"",
            "text": b"hello\n" * 9,
            "damaged middle": middle,
        }
        path.write_bytes(contents[kind])
    assert "invalid header or archive is corrupted" in refusal(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="model file not found.*none.pth"):
        open_checkpoint(tmp_path / "none.pth")


class _Marker:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
def test_sec_1_code_in_a_checkpoint_is_never_run(legacy, good, tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "model.pth"
    torch.save({**good, "extra": _Marker(marker)}, path, _use_new_zipfile_serialization=not legacy)
    text = refusal(path)
    assert "refused" in text and "mkdir" in text
    assert not marker.exists()
    path.write_bytes(pickle.dumps(_Marker(marker)))
    refusal(path)
    assert not marker.exists()


def test_sec_1_harmless_extra_entries_are_named_and_ignored(good, tmp_path, caplog):
    torch.save({**good, "step": 7, "note": "trained on x"}, tmp_path / "model.pth")
    with caplog.at_level(logging.WARNING):
        load(tmp_path / "model.pth").close()
    assert "'step', 'note'" in caplog.text


def test_sec_1_an_old_torch_is_refused_in_words():
    for version in ("2.5.1+cu121", "1.13.0", "2.0"):
        with pytest.raises(CheckpointError, match=re.escape(version)):
            check_torch(version)
    for version in ("2.6.0", "2.13.0+cpu", "3.0.0a0+git12"):
        check_torch(version)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("legacy", [False, True])
def test_types_and_both_file_forms_load_to_float32(dtype, legacy, tmp_path):
    state = tiny.random_checkpoint(layers=1, vocab=300, dtype=dtype)
    torch.save(state, tmp_path / "model.pth", _use_new_zipfile_serialization=not legacy)
    engine = load(tmp_path / "model.pth")
    assert engine.info.dtype == "float32"
    # The first layer's three value-residual tensors are in the file but not in use.
    unused = sum(state[f"blocks.0.att.v{i}"].numel() for i in range(3))
    assert engine.info.weight_bytes == 4 * (sum(value.numel() for value in state.values()) - unused)
    engine.close()


def test_the_first_layer_needs_no_value_residual(executor, greedy, good, tmp_path):
    with_them = tiny.write(tmp_path / "with.pth", good)
    without_them = tiny.write(tmp_path / "without.pth", without(*(f"blocks.0.att.v{i}" for i in range(3)))(good))
    texts = [greedy(executor(path, limit=300), [[5, 6, 7]], count=8) for path in (with_them, without_them)]
    assert texts[0] == texts[1]


def test_vectors_may_have_any_leading_ones(executor, greedy, good, tmp_path):
    flat = {key: value.flatten() if value.dim() == 3 else value for key, value in good.items()}
    texts = [greedy(executor(tiny.write(tmp_path / f"{i}.pth", s), limit=300), [[5, 6]], count=8) for i, s in enumerate((good, flat))]
    assert texts[0] == texts[1]


def test_weights_do_not_hang_on_the_file(executor, greedy, good, tmp_path):
    path = tiny.write(tmp_path / "model.pth", good)
    engine = executor(path, limit=300)
    before = greedy(engine, [[5, 6, 7]], count=8)
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert greedy(engine, [[5, 6, 7]], count=8) == before


def test_progress_counts_bytes_up_to_the_total(good, tmp_path):
    seen: list[tuple[int, int]] = []
    path = tiny.write(tmp_path / "model.pth", good)
    TorchExecutor(WorkerSpec("", str(path), "cpu", 0, 3, 300, 1), lambda loaded, total: seen.append((loaded, total))).close()
    loaded = [number for number, _ in seen]
    assert loaded == sorted(loaded) and seen[-1][0] == seen[-1][1] and len({total for _, total in seen}) == 1


def test_workers_on_the_cpu_share_the_weights_and_not_the_states(good, tmp_path, greedy, executor):
    path = tiny.write(tmp_path / "model.pth", good)
    first, second = executor(path, limit=300), executor(path, limit=300)
    assert first._model._weights is second._model._weights
    assert first._pool.wkv.data_ptr() != second._pool.wkv.data_ptr()
    assert greedy(first, [[5, 6]], count=4) == greedy(second, [[5, 6]], count=4)
    changed = tiny.random_checkpoint(layers=3, vocab=300, seed=9)
    tiny.write(path, changed)
    os.utime(path, ns=(1, 1))
    assert executor(path, limit=300)._model._weights is not first._model._weights


@pytest.mark.parametrize("batch", [10**8, 10**12, 10**400])
def test_str_1_more_slots_than_memory_is_refused_at_once_with_a_batch_that_fits(batch, good, tmp_path):
    path = tiny.write(tmp_path / "model.pth", good)
    started = time.monotonic()
    with pytest.raises(DeviceError, match=rf"not enough memory: batch={batch} needs \d+\.\d GiB .*; batch=\d+ would fit"):
        load(path, rows=batch + 1)
    assert time.monotonic() - started < 2


def test_one_odd_key_costs_no_time(good):
    started = time.monotonic()
    with pytest.raises(CheckpointError):
        read_spec("model.pth", {**good, "blocks.99999999.att.r_k": torch.zeros(2, 64)})
    assert time.monotonic() - started < 0.1
