"""The words by which the Runner's desktop client knows a failed load: each stands in the errors that it fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from docs.pages import rows
from kernels.toolkit import make_toolkit, make_torch, path_with
from model import damage

from albatross_plugin import errors
from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.errors import CheckpointError, DeviceError, EngineInitError
from albatross_plugin.kernel_loader.toolchain import find_toolchain
from albatross_plugin.model.checkpoint import open_checkpoint
from albatross_plugin.model.cuda_memory import check_fits
from albatross_plugin.model.device import check_device
from albatross_plugin.model.spec import ModelSpec

# As the client of v1.9.11 spells them.
WORDS = (
    "not enough memory",
    "not compiled with CUDA",
    "invalid header or archive is corrupted",
    "no NVIDIA driver",
    "CUDA out of memory",
    "Ninja is required to load C++ extensions",
    "re-convert the model",
)
SPEC = ModelSpec("1.5b", 24, 2048, 8192, 65536)
GIB = 1 << 30


def reason(action: Callable[[], object], kind: type[Exception] = DeviceError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def test_the_words_are_the_clients() -> None:
    ours = (
        errors.NO_MEMORY,
        errors.NO_CUDA_BUILD,
        errors.DAMAGED,
        errors.NO_DRIVER,
        errors.NO_CARD_MEMORY,
        errors.NO_NINJA,
        errors.CONVERTED,
    )
    assert ours == WORDS


@pytest.mark.parametrize(("cuda", "word"), [(None, "not compiled with CUDA"), ("12.8", "no NVIDIA driver")])
def test_no_card(cuda: str | None, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = reason(lambda: check_device("cuda", 1))
    assert word in said and [each for each in WORDS if each in said] == [word]


@pytest.mark.parametrize("free", [20 * GIB, 2 * GIB], ids=["too many slots", "not even the weights"])
def test_the_card_is_too_small(free: int) -> None:
    assert "CUDA out of memory" in reason(lambda: check_fits(SPEC, 3 * GIB, 4096, 4096, torch.float16, True, free))


def test_the_machine_is_too_small(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "model.pth", tiny.random_checkpoint())
    said = reason(lambda: AlbatrossRWKV(str(path), batch_size=10**9, device="cpu"), EngineInitError)
    assert "not enough memory: batch=1000000000 needs" in said


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 GiB", "CUDA out of memory"),
        ("CUDA error: out of memory", "CUDA out of memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "CUDA out of memory"),
        (
            "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.",
            "not enough memory",
        ),
        ("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.", "not enough memory"),
        ("model.pth cannot be read: [Errno 12] Cannot allocate memory", "not enough memory"),
        ("The paging file is too small for this operation to complete. (os error 1455)", "not enough memory"),
        ("MemoryError", "not enough memory"),
        ("no record has the 1455 bytes that a tensor needs", None),
    ],
)
def test_memory_that_ends_is_told_in_known_words(said: str, word: str | None) -> None:
    text = str(EngineInitError(said))
    assert text.startswith(errors.INIT_PREFIX) and text.endswith(said)
    assert [each for each in WORDS if each in text] == ([word] if word else [])
    # Only once, and not again when an error is wrapped.
    assert str(EngineInitError(text)) == text and (word is None or text.count(word) == 1)


@pytest.mark.parametrize("case", ["empty", "a web page", "half a record", "a record of 4 GiB", "packed"])
def test_a_damaged_file(case: str, tmp_path: Path) -> None:
    state = tiny.random_checkpoint(layers=1, width=64, vocab=damage.VOCAB)
    content, _ = damage.wrong_contents(state, str(tmp_path / "marker"))[case]
    (tmp_path / "model.pth").write_bytes(content)
    said = reason(lambda: open_checkpoint(tmp_path / "model.pth"), CheckpointError)
    # One that an archiver packed is whole: another download would not help.
    assert ("invalid header or archive is corrupted" in said) == (case != "packed")


def test_a_converted_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    torch.save({**tiny.random_checkpoint(layers=1, width=64, vocab=damage.VOCAB), "_strategy": "cpu fp32"}, path)
    assert "re-convert the model" in reason(lambda: open_checkpoint(path), CheckpointError)


def test_no_ninja(tmp_path: Path) -> None:
    home = make_toolkit(tmp_path / "cuda")
    environ = {"PATH": path_with(tmp_path / "bin", "sh", "c++", home=home)}
    said = reason(lambda: find_toolchain(make_torch(tmp_path / "torch"), ["sm90"], tmp_path, environ, packaged_ninja=lambda: None))
    assert "Ninja is required to load C++ extensions" in said and "pip install ninja" in said


@pytest.mark.parametrize("page", ["docs/install/windows.md", "docs/install/windows.zh-CN.md"])
def test_the_guide_for_windows_explains_each(page: str) -> None:
    heading = "报错中的文字" if "zh" in page else "the error says"
    told = " ".join(row[0] for row in rows(page, heading))
    assert [word for word in WORDS if word not in told] == []
