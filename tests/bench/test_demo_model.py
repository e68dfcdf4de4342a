"""The seeded checkpoints: official layout, the same every time, made again when damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import peers
import pytest

from albatross_plugin.bench.checkpoints import CheckpointError, ModelShape, checkpoint
from host_stub.demo_model import Shape, cache_folder, cached_checkpoint, random_checkpoint

TINY = Shape(layers=2, width=128, vocab=300)


def test_same_seed_same_weights() -> None:
    torch = peers.load("torch")
    one, two, other = random_checkpoint(TINY, 3), random_checkpoint(TINY, 3), random_checkpoint(TINY, 4)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["emb.weight"], other["emb.weight"])


def test_layout_is_that_of_official_files() -> None:
    peers.need("torch")
    weights = random_checkpoint(TINY)
    assert {tuple(weights["emb.weight"].shape), tuple(weights["head.weight"].shape)} == {(300, 128)}
    assert tuple(weights["blocks.1.att.r_k"].shape) == (2, 64)
    assert tuple(weights["blocks.1.ffn.key.weight"].shape) == (512, 128)
    assert {str(tensor.dtype) for tensor in weights.values()} == {"torch.bfloat16"}
    # The end of text never wins.
    assert not weights["head.weight"][0].any() and weights["head.weight"][1].any()


def test_damaged_or_missing_files_are_made_again(tmp_path: Path) -> None:
    peers.need("torch")
    path, made = cached_checkpoint(tmp_path, TINY)
    whole = path.read_bytes()
    assert made and cached_checkpoint(tmp_path, TINY) == (path, False)
    for damage in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(damage)
        assert cached_checkpoint(tmp_path, TINY) == (path, True)
        assert cached_checkpoint(tmp_path, TINY) == (path, False)
    path.unlink()
    assert cached_checkpoint(tmp_path, TINY) == (path, True)
    assert sorted(entry.suffix for entry in tmp_path.iterdir()) == [".pth", ".sha256"]


def test_other_shapes_and_seeds_have_files_of_their_own(tmp_path: Path) -> None:
    peers.need("torch")
    paths = {cached_checkpoint(tmp_path, shape, seed)[0] for shape in (TINY, Shape(1, 128, 300)) for seed in (0, 1)}
    assert len(paths) == 4


@pytest.mark.parametrize("sizes", [(0, 64), (2, 100), (2, 0), (2, 64, 1)])
def test_impossible_shapes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        Shape(*sizes)


def test_benchmarks_get_their_checkpoints_by_command(tmp_path: Path) -> None:
    peers.need("torch")
    path = checkpoint(ModelShape(1, 64, 300), tmp_path)
    assert path.parent == tmp_path and path == cached_checkpoint(tmp_path, Shape(1, 64, 300))[0]
    with pytest.raises(CheckpointError, match="multiple of 64"):
        checkpoint(ModelShape(1, 65, 300), tmp_path)


def test_command_wants_a_place(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "host_stub.demo_model"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "name the file" in done.stderr


def test_state_formula() -> None:
    """0.1B shape: 12 layers of two 768-vectors and 12 heads of 64 x 64."""
    shape = ModelShape(12, 768)
    assert shape.state_floats == 12 * (2 * 768 + 12 * 64 * 64) == 66 * 12 * 768
    assert shape.slot_bytes == 4 * shape.state_floats + 9 * 65536


def test_cache_folder_follows_the_platform(tmp_path: Path) -> None:
    base = str(tmp_path)
    assert cache_folder({"LOCALAPPDATA": base}, "win32") == tmp_path / "albatross-plugin" / "Cache"
    assert cache_folder({}, "win32").parts[-4:] == ("AppData", "Local", "albatross-plugin", "Cache")
    assert cache_folder({"XDG_CACHE_HOME": base}, "linux") == tmp_path / "albatross-plugin"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}, "linux") == Path.home() / ".cache" / "albatross-plugin"
    assert PurePosixPath(cache_folder({}, "darwin").as_posix()).parts[-3:] == ("Library", "Caches", "albatross-plugin")


def test_the_rwkv_package_runs_it_and_never_ends_the_text(tmp_path: Path) -> None:
    peers.need("torch")
    peers.need("rwkv")
    path, _ = cached_checkpoint(tmp_path, Shape(layers=2, width=128))
    code = """
import sys, torch
from rwkv.model import RWKV
model = RWKV(sys.argv[1][:-4], "cpu fp32")
scores, state = model.forward([59, 33, 261], None)
for step in range(40):
    token = int(scores.argmax())
    assert torch.isfinite(scores).all() and 1 <= token < 65530 and scores[0] == 0, (step, token)
    scores, state = model.forward([token], state)
spread = float(scores.std())
assert 1 < spread < 10, spread
print("ran")
"""
    environment = {**os.environ, "RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0 and "ran" in done.stdout, done.stderr
