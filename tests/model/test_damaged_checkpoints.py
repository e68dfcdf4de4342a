"""Damaged files through the front door: each is refused in words within seconds, and the host serves the next good one."""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("fastapi")

import tiny
import torch
from model import damage
from stub import StubHost

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.errors import CheckpointError, EngineInitError
from albatross_plugin.model.archive import Checksums
from albatross_plugin.model.checkpoint import open_checkpoint
from albatross_plugin.model.executor import TorchExecutor

STRATEGY = "albatross device=cpu batch=2"
STATE = tiny.random_checkpoint(layers=1, width=64, vocab=damage.VOCAB)
GOOD = damage.saved(STATE)
SECONDS = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "good.pth").write_bytes(GOOD)
    damage.small_vocabulary(folder)
    return folder


WRONG = damage.wrong_contents(STATE, "marker")


class Door:
    """``/switch-model`` of a host in a process of its own, which a crash in native code would end."""

    def __init__(self, host: StubHost, folder: Path) -> None:
        self.host, self.folder = host, folder

    def refusal(self, path: Path | str, strategy: str = STRATEGY) -> str:
        """The reason for which a model is refused. Checks that the host says it quickly, in one line, and is Offline then."""
        began, lines = time.monotonic(), len(self.host.log)
        answer = self.host.switch(path, strategy, tokenizer=None if strategy == "cpu fp32" else str(self.folder / "small.txt"))
        assert answer.status_code == 500, answer.text
        assert time.monotonic() - began < SECONDS
        data = answer.json()
        assert data["error"]["code"] == "model_load_failed" and data["error"]["type"] == "server_error"
        assert self.host.status()["status"] == 0
        self.host.wait_for(lambda: any("failed to load" in line for line in self.host.log[lines:]))
        assert not any("Traceback" in line for line in self.host.log[lines:])
        detail = str(data["detail"])
        assert detail.startswith("failed to load: ") and len(detail) < 700
        return detail

    def load_good(self) -> str:
        """Load a sound file; what it says."""
        answer = self.host.switch(self.folder / "good.pth", STRATEGY, tokenizer=str(self.folder / "small.txt"))
        assert answer.status_code == 200, answer.text
        said = self.host.client.post("/v1/completions", json={"prompt": "abcd", "max_tokens": 8, "temperature": 0, "ignore_eos": True})
        assert said.status_code == 200, said.text
        return str(said.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def door(folder: Path) -> Iterator[Door]:
    with StubHost() as host:
        opened = Door(host, folder)
        said, process = opened.load_good(), psutil.Process(host.process.pid)
        assert host.switch("", "").status_code == 200
        size, threads, files = process.memory_info().rss, process.num_threads(), process.num_fds()
        yield opened
        assert opened.load_good() == said
        assert host.switch("", "").status_code == 200
        assert host.process.poll() is None
        assert process.memory_info().rss - size < 30e6
        assert process.num_threads() <= threads + 2 and process.num_fds() <= files + 4


# --- through the front door -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WRONG)
def test_lod_1_r12_r28_a_file_that_is_no_model_is_refused_in_words(case: str, door: Door, tmp_path: Path) -> None:
    content, words = WRONG[case]
    (tmp_path / "model.pth").write_bytes(content)
    assert words in door.refusal(tmp_path / "model.pth")
    # The host's own loader, with another strategy, must not fall over it either.
    door.refusal(tmp_path / "model.pth", "cpu fp32")
    refused = door.host.client.post("/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "model_not_loaded"
    assert not (Path(door.host.folder.name) / "marker").exists(), "SEC-1, R27: code in the file was run"


@pytest.mark.parametrize("strategy", [STRATEGY, "cpu fp32"])
def test_lod_1_what_is_no_file_at_all(strategy: str, door: Door, tmp_path: Path) -> None:
    (tmp_path / "folder.pth").mkdir()
    os.symlink(tmp_path / "b.pth", tmp_path / "a.pth")
    os.symlink(tmp_path / "a.pth", tmp_path / "b.pth")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling.pth")
    os.mkfifo(tmp_path / "pipe.pth")
    os.symlink("/dev/zero", tmp_path / "device.pth")
    for name, words in {
        "folder": "not a model file",
        "a": "not found",
        "dangling": "not found",
        "pipe": "not a model file",
        "device": "not a model file",
        "x" * 300: "",
        "none": "not found",
    }.items():
        assert words in door.refusal(tmp_path / f"{name}.pth", strategy), name
    assert "not found" in door.refusal("~nobody-has-this-name/model.pth", strategy)


@pytest.mark.parametrize("strategy", [STRATEGY, "cpu fp32"])
def test_lod_1_a_file_that_may_not_be_read(strategy: str, door: Door, tmp_path: Path) -> None:
    path = tmp_path / "closed.pth"
    if os.geteuid():
        path.write_bytes(GOOD)
        path.chmod(0)
    else:
        # Nothing is closed to the superuser, but this gives an error whoever reads it.
        os.symlink("/proc/self/mem", path)
    door.refusal(path, strategy)


def test_lod_1_a_vocabulary_that_is_a_pipe_is_refused(door: Door, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    answer = door.host.switch(door.folder / "good.pth", STRATEGY, tokenizer=str(tmp_path / "pipe.txt"))
    assert answer.status_code == 500 and "pipe.txt" in answer.json()["detail"]


def test_lod_1_a_sample_of_flipped_bits_and_cut_files(door: Door, tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    for content in [
        *damage.truncations(GOOD, seed=1, count=2),
        *(content for name, content in damage.flips(GOOD, 2, 4) if name == "numbers"),
    ]:
        path.write_bytes(content)
        door.refusal(path)


# --- many, in this process ------------------------------------------------------------------------------------------


def outcome(path: Path, content: bytes) -> str | None:
    """The reason for which ``content`` is refused, or None when it loads as if nothing had happened to it."""
    path.write_bytes(content)
    began = time.monotonic()
    try:
        TorchExecutor(WorkerSpec("", str(path), "cpu", 0, 2, 260, 1), lambda loaded, total: None).close()
        tensors = open_checkpoint(path)[1]
    except CheckpointError as error:
        assert path.name in str(error)
        return str(error)
    finally:
        assert time.monotonic() - began < SECONDS
    assert tensors.keys() == STATE.keys()
    assert all(torch.equal(tensor, STATE[key]) for key, tensor in tensors.items()), "damage went unnoticed"
    return None


def try_flips(path: Path, seed: int, count: int) -> None:
    for region, content in damage.flips(GOOD, seed, count):
        reason = outcome(path, content)
        assert reason or region in ("directory", "header"), region


def test_lod_1_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    try_flips(tmp_path / "model.pth", 7, 12)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_lod_1_thousands_of_flipped_bits(tmp_path: Path) -> None:
    try_flips(tmp_path / "model.pth", random.randrange(2**32), 3000)
    for content in damage.truncations(GOOD, random.randrange(2**32), 3000):
        assert outcome(tmp_path / "model.pth", content)


def test_lod_1_every_cut_file_is_refused(tmp_path: Path) -> None:
    for content in damage.truncations(GOOD, seed=3, count=20):
        assert outcome(tmp_path / "model.pth", content)
    older = damage.saved(STATE, legacy=True)
    chance = random.Random(4)
    for _ in range(20):
        assert outcome(tmp_path / "model.pth", older[: chance.randrange(len(older))])


def test_lod_1_flipped_bits_in_the_older_form_never_raise_anything_else(tmp_path: Path) -> None:
    """It has no checksums: its pickles are checked, its numbers cannot be."""
    older, chance, path = damage.saved(STATE, legacy=True), random.Random(5), tmp_path / "model.pth"
    for _ in range(40):
        path.write_bytes(damage.flipped(older, chance.randrange(4000), chance.randrange(8)))
        try:
            TorchExecutor(WorkerSpec("", str(path), "cpu", 0, 2, 260, 1), lambda loaded, total: None).close()
        except CheckpointError as error:
            assert path.name in str(error)


# --- checksums and odd numbers --------------------------------------------------------------------------------------


def test_a_file_that_was_saved_without_checksums_loads(tmp_path: Path) -> None:
    assert outcome(tmp_path / "model.pth", damage.without_checksums(STATE)) is None


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_infinite_weights_load_with_a_warning_that_names_them(value: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = {**STATE, "head.weight": STATE["head.weight"].clone()}
    state["head.weight"][5, 5] = value
    path = tiny.write(tmp_path / "model.pth", state)
    with caplog.at_level(logging.WARNING):
        TorchExecutor(WorkerSpec("", str(path), "cpu", 0, 2, 260, 1), lambda loaded, total: None).close()
    assert "model.pth: head.weight holds infinite values" in caplog.text


def test_a_load_that_is_called_off_does_not_wait_for_checksums(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    path.write_bytes(GOOD)

    def called_off() -> None:
        raise RuntimeError("called off")

    for wanted in (called_off, lambda: None):
        with pytest.raises(RuntimeError, match="called off"), Checksums(path, wanted):
            if wanted is not called_off:
                called_off()
    assert not [thread for thread in threading.enumerate() if thread.name == "albatross-checksums"]


# --- what a strategy asks for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [10**8, 10**30])
def test_str_1_r12_a_batch_that_does_not_fit_is_refused_before_the_weights_are_read(batch: int, door: Door, tmp_path: Path) -> None:
    # These weights would be refused if anybody looked at them.
    (tmp_path / "model.pth").write_bytes(WRONG["NaN in the table"][0])
    answer = door.host.switch(tmp_path / "model.pth", f"albatross device=cpu batch={batch}", tokenizer=str(door.folder / "small.txt"))
    assert answer.status_code == 500 and door.host.status()["status"] == 0
    assert re.search(rf"batch={batch} needs .* beside 0\.0 GiB of weights, .*; batch=\d+ would fit", answer.json()["detail"])
    assert door.load_good()


def test_str_3_r13_more_workers_than_there_is_room_for_are_refused_at_once(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "choose workers=" in door.refusal(door.folder / "good.pth", "albatross device=cpu workers=1000")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(EngineInitError, match="workers=2 needs 2 GPUs, one each, but 1 can be used. Choose workers=1"):
        AlbatrossRWKV(str(door.folder / "good.pth"), 2, 4, str(door.folder / "small.txt"), device="cuda")
