"""Builds in a user's cache: once, by one process at a time, whole or not at all, and short words when they fail."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from kernels.toolkit import make_job, make_toolkit

from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader.build import Job, build, build_key, cache_root, source_files, telling_lines
from albatross_plugin.kernel_loader.ninja_file import gencode

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tools of these tests are shell scripts")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "CUDA_HOME": str(make_toolkit(tmp_path / "cuda with space")), "CALLS": str(tmp_path / "calls")}


def calls(tmp_path: Path) -> int:
    file = tmp_path / "calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_build_is_made_once_and_loads(tmp_path: Path, environ: Mapping[str, str], caplog: pytest.LogCaptureFixture) -> None:
    job, root = make_job(tmp_path / "odd $ name: é"), tmp_path / "cache & more"
    with caplog.at_level(logging.INFO, logger="albatross_plugin.kernel_loader.build"):
        library, made = build(job, root, environ)
    assert made and ctypes.CDLL(str(library)).answer() == 42
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("building kernels for sm90, once for this torch (2.11.0+cu130)") and "built in" in said[1]
    assert build(job, root, environ) == (library, False)
    assert calls(tmp_path) == 1
    assert sorted(path.name for path in root.iterdir()) == [build_key(job), build_key(job) + ".lock"]
    # Without any tool, since there is nothing to build.
    assert build(job, root, {"PATH": ""}) == (library, False)


def test_the_key_follows_everything_that_a_library_depends_on(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    others = [
        replace(job, archs=("sm80",)),
        replace(job, archs=("compute90",)),
        replace(job, facts=replace(job.facts, version="2.12.0+cu130")),
        replace(job, facts=replace(job.facts, cuda="13.1")),
        replace(job, facts=replace(job.facts, cxx11_abi=False)),
    ]
    keys = {build_key(each) for each in (job, *others)}
    assert len(keys) == 6
    (job.sources / "answer.h").write_text("int half_of_it(); // a header alone\n", encoding="utf-8")
    assert build_key(job) not in keys
    assert build_key(job) == build_key(replace(job, timeout=5, jobs=2))


def test_processes_at_the_same_time_build_once(tmp_path: Path, environ: Mapping[str, str]) -> None:
    job = make_job(tmp_path)
    code = f"""
from kernels.toolkit import *
from albatross_plugin.kernel_loader.build import Job, build
from albatross_plugin.kernel_loader.context import TorchFacts
from pathlib import Path
facts = TorchFacts({job.facts.version!r}, {job.facts.cuda!r}, Path({str(job.facts.folder)!r}))
print(build(Job(Path({str(job.sources)!r}), facts, {job.archs!r}, 60), Path({str(tmp_path / "cache")!r}))[1])
"""
    slow = {**environ, "SLOW": "0.5", "PYTHONPATH": str(Path(__file__).parents[1])}
    running = [subprocess.Popen([sys.executable, "-c", code], env=slow, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = sorted(process.communicate(timeout=60)[0].strip() for process in running)
    assert said == ["False", "False", "False", "True"]
    assert calls(tmp_path) == 1


def test_krn_1_a_build_that_was_killed_half_way_is_made_anew(tmp_path: Path, environ: Mapping[str, str]) -> None:
    job, root = make_job(tmp_path), tmp_path / "cache"
    code = f"""
from albatross_plugin.kernel_loader.build import Job, build
from albatross_plugin.kernel_loader.context import TorchFacts
from pathlib import Path
build(Job(Path({str(job.sources)!r}), TorchFacts({job.facts.version!r}, {job.facts.cuda!r}, Path({str(job.facts.folder)!r})),
          {job.archs!r}, 60), Path({str(root)!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", code], env={**environ, "SLOW": "30"}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not calls(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert calls(tmp_path) == 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    # ninja gives every command a group of its own; what the killed build left running would outlive this test.
    os.killpg(os.getpgid(int((tmp_path / "calls").read_text().split()[0])), signal.SIGKILL)
    assert list(root.glob("*.build-*")) != []
    began = time.monotonic()
    library, made = build(job, root, environ)
    assert made and library.is_file() and time.monotonic() - began < 20
    assert list(root.glob("*.build-*")) == []


def test_krn_2_a_failed_build_says_why_in_a_line_and_leaves_its_log(tmp_path: Path, environ: Mapping[str, str]) -> None:
    job, root = make_job(tmp_path, broken=True), tmp_path / "cache"
    with pytest.raises(DeviceError) as caught:
        build(job, root, environ)
    text = str(caught.value)
    assert text.startswith("building the kernels for sm90 with nvcc 13.0 failed: ") and "host.cpp:2:" in text and "\n" not in text
    assert len(text) < 1500
    (log,) = root.glob("*.log")
    assert str(log) in text and "FAILED" in log.read_text(encoding="utf-8")
    assert list(root.glob("*.build-*")) == [] and not (root / build_key(job)).exists()


def test_a_build_that_takes_too_long_is_ended(tmp_path: Path, environ: Mapping[str, str]) -> None:
    job = make_job(tmp_path, timeout=1)
    began = time.monotonic()
    with pytest.raises(DeviceError, match="took more than 1 s; set ALBATROSS_BUILD_TIMEOUT to more"):
        build(job, tmp_path / "cache", {**environ, "SLOW": "60"})
    assert time.monotonic() - began < 15


def test_max_jobs_is_honoured(tmp_path: Path, environ: Mapping[str, str]) -> None:
    seen = tmp_path / "seen"
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ninja").write_text(f'#!/bin/sh\necho "$@" >> "{seen}"\nexit 1\n', encoding="utf-8")
    (tools / "ninja").chmod(0o755)
    path = f"{tools}{os.pathsep}{environ['PATH']}"
    job = make_job(tmp_path)
    for jobs, variable in ((0, "3"), (5, "3"), (0, "many")):
        with pytest.raises(DeviceError, match="ninja said nothing"):
            build(replace(job, jobs=jobs), tmp_path / "cache", {**environ, "PATH": path, "MAX_JOBS": variable})
    assert seen.read_text().splitlines() == ["-j 3", "-j 5", ""]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, environ: Mapping[str, str]) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DeviceError, match=rf"cannot be built in {file}/cache: .*Set ALBATROSS_CACHE_DIR"):
        build(make_job(tmp_path), file / "cache", environ)


def test_a_relative_folder_of_sources(tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert build(replace(job, sources=Path("csrc")), tmp_path / "cache", environ)[1]


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="reinstall albatross-plugin"):
        source_files(tmp_path)
    job = make_job(tmp_path)
    with pytest.raises(DeviceError, match="sources are missing"):
        build(Job(tmp_path / "none", job.facts, ("sm90",), 5), tmp_path)


@pytest.mark.parametrize(
    ("chosen", "environ", "platform", "expected"),
    [
        ("/data/k", {"XDG_CACHE_HOME": "/x"}, "linux", "/data/k"),
        ("", {"XDG_CACHE_HOME": "/x"}, "linux", "/x/albatross-plugin/kernels"),
        ("", {"XDG_CACHE_HOME": "relative"}, "linux", "~/.cache/albatross-plugin/kernels"),
        ("", {}, "linux", "~/.cache/albatross-plugin/kernels"),
        ("~/k", {}, "linux", "~/k"),
        ("", {"LOCALAPPDATA": "/local"}, "win32", "/local/albatross-plugin/Cache/kernels"),
        ("", {}, "darwin", "~/Library/Caches/albatross-plugin/kernels"),
    ],
)
def test_cache_folder_by_platform(chosen: str, environ: dict[str, str], platform: str, expected: str) -> None:
    assert cache_root(chosen, environ, platform) == Path(expected).expanduser()


def test_machine_code_brings_its_ptx_and_ptx_comes_alone() -> None:
    assert gencode(["sm90"]) == ["-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_90,code=compute_90"]
    assert gencode(["compute80"]) == ["-gencode=arch=compute_80,code=compute_80"]


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("[1/2] nvcc a.o\na.cu(3): error: x is undefined\n1 error detected in the compilation\n", "a.cu(3): error: x is undefined | 1 error detected"),
        ("FAILED: a.o\nnvcc -c error.cu\n#error -- unsupported GNU version! gcc versions later than 15", "the C++ compiler is newer than nvcc supports"),
        ("c++: fatal error: Killed signal terminated program cc1plus\n", "memory ran out; set MAX_JOBS=1: c++: fatal error"),
        ("cannot write a.o: No space left on device\n", "the disk is full"),
        ("fatal error: Python.h: No such file or directory\n", "install python3-dev"),
        ("something odd\n", "something odd"),
        ("", "ninja said nothing"),
        ("x: error: " + "y" * 5000, "..."),
    ],
)  # fmt: skip
def test_krn_2_few_lines_of_many(output: str, said: str) -> None:
    text = telling_lines("warning: noise\n" * 500 + output if "rror" in output else output)
    assert said in text and len(text) < 600 and "noise" not in text
