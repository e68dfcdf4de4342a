"""What a load does without a card, and with one that is pretended: prebuilt, cached or built (REQ-79 to REQ-82, KRN-3)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernels.toolkit import make_sources, make_toolkit, make_torch

from albatross_plugin.config import EngineConfig
from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader import load, load_kernels
from albatross_plugin.kernel_loader.context import context_for
from albatross_plugin.kernel_loader.manifest import sha256_of
from albatross_plugin.model import kernels

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tools of these tests are shell scripts")


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], EngineConfig]:
    """Pretends an H200, a torch of CUDA 13 and a toolkit; makes settings for a word of ALBATROSS_KERNEL_ARCH."""
    facts = make_torch(tmp_path / "torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a pretended card")
    monkeypatch.setattr(load, "torch_facts", lambda: facts)
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda")))
    make_sources(tmp_path / "root" / "csrc")
    return lambda arch: EngineConfig(kernel_arch=arch, cache_dir=str(tmp_path / "cache"), build_timeout=60)


def add_prebuilt(root: Path, content: bytes, **changed: str) -> None:
    (root / "file.so").write_bytes(content)
    row = {**asdict(context_for(load.torch_facts(), "sm90")), "path": "file.so", "sha256": sha256_of(root / "file.so"), **changed}
    (root / "manifest.json").write_text(json.dumps({"kernels": [row]}), encoding="utf-8")


def test_req_82_without_a_card_nothing_is_loaded_or_compiled(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    assert load_kernels(EngineConfig(cache_dir=str(tmp_path / "cache"))) is None
    assert not (tmp_path / "cache").exists()
    with pytest.raises(DeviceError, match=r"need a card.*device=cpu"):
        kernels.ops()


def test_req_85_rocm_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2", raising=False)
    with pytest.raises(DeviceError, match="is a ROCm build, and the kernels have not been tested on ROCm"):
        load_kernels()


def test_req_80_a_miss_builds_and_the_next_load_does_not(tmp_path: Path, card: Callable[[str], EngineConfig]) -> None:
    found = load_kernels(card("auto"), tmp_path / "root")
    assert found is not None and found.source == "build" and found.path.is_relative_to(tmp_path / "cache")
    assert found.context.arch == "sm90" and found.rejected == ("manifest.json is not there",)
    again = load_kernels(card("auto"), tmp_path / "root")
    assert again is not None and again.source == "cache" and again.path == found.path
    forced = load_kernels(card("compute80"), tmp_path / "root")
    assert forced is not None and forced.source == "build" and "compute80" in str(forced.path)


def test_req_79_a_hit_is_loaded_without_tools(tmp_path: Path, card: Callable[[str], EngineConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    built = load_kernels(card("auto"), tmp_path / "root")
    assert built is not None
    add_prebuilt(tmp_path / "root", built.path.read_bytes())
    for name in ("PATH", "CUDA_HOME"):
        monkeypatch.setenv(name, "/nowhere")
    found = load_kernels(replace(card("auto"), cache_dir=str(tmp_path / "other")), tmp_path / "root")
    assert found is not None and found.source == "prebuilt" and found.path == tmp_path / "root" / "file.so"
    assert not (tmp_path / "other").exists()


def test_krn_3_a_file_that_does_not_load_is_one_warning_and_a_build(
    tmp_path: Path, card: Callable[[str], EngineConfig], caplog: pytest.LogCaptureFixture
) -> None:
    add_prebuilt(tmp_path / "root", b"this is a text\n")
    found = load_kernels(card("auto"), tmp_path / "root")
    assert found is not None and found.source == "build"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "made for torch 2.11.0+cu130, do not load into torch 2.11.0+cu130" in warning and "\n" not in warning
    assert len(found.rejected) == 1 and "file.so" in found.rejected[0]


def test_krn_3_a_damaged_build_in_the_cache_is_made_again(
    tmp_path: Path, card: Callable[[str], EngineConfig], caplog: pytest.LogCaptureFixture
) -> None:
    path = load.cache_root(card("auto").cache_dir)
    job = load.Job(tmp_path / "root" / "csrc", load.torch_facts(), ("sm90",), 60)
    library, _ = load.build(job, path)
    library.write_bytes(b"half of a")
    found = load_kernels(card("auto"), tmp_path / "root")
    assert found is not None and found.source == "build" and found.path == library
    assert "do not load and are built again" in caplog.text


def test_krn_2_every_reason_is_in_the_error(tmp_path: Path, card: Callable[[str], EngineConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    add_prebuilt(tmp_path / "root", b"text", torch="2.7.1+cu128")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(DeviceError) as caught:
        load_kernels(card("auto"), tmp_path / "root")
    text = str(caught.value)
    assert text.startswith("no CUDA kernels for sm90 and torch 2.11.0+cu130: CUDA_HOME=/nowhere holds no bin/nvcc")
    assert "Prebuilt: file.so (sm90): torch 2.7.1+cu128, here 2.11.0+cu130." in text and "\n" not in text


def test_req_78_a_word_that_forces_no_architecture_is_refused(tmp_path: Path, card: Callable[[str], EngineConfig]) -> None:
    with pytest.raises(DeviceError, match="'foo' names no architecture"):
        load_kernels(card("foo"), tmp_path / "root")


def test_an_old_card_is_refused_with_its_name(tmp_path: Path, card: Callable[[str], EngineConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (6, 1))
    with pytest.raises(DeviceError, match=r"a pretended card has compute capability 6\.1; the kernels need 7\.5 or newer"):
        load_kernels(card("auto"), tmp_path / "root")
