"""The kernels on a card: loaded as prebuilt file or build, dense products against float64, and refusals of what would go wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import albatross_plugin
from albatross_plugin.config import EngineConfig
from albatross_plugin.kernel_loader import Loaded, load_kernels
from albatross_plugin.kernel_loader.load import kernels_folder
from albatross_plugin.kernel_loader.manifest import sha256_of
from albatross_plugin.model.kernels import ops

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

WORKSPACE_BYTES = 32 << 20


@pytest.fixture(scope="module")
def kernels() -> Any:
    return ops()


def half(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).half()


def workspace(size: int = WORKSPACE_BYTES) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


# --- Loading -----------------------------------------------------------------------------------------------------------


def in_a_process(code: str, **environ: str) -> str:
    folder = str(Path(albatross_plugin.__file__).parents[1])
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    variables = {**os.environ, "PYTHONPATH": path, **environ}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


LOAD = """
import logging, sys
from pathlib import Path
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
from albatross_plugin.config import EngineConfig
from albatross_plugin.kernel_loader import load_kernels
import torch
found = load_kernels(EngineConfig.load(), Path(sys.argv[1]) if len(sys.argv) > 1 else {root})
x = torch.full((8,), 3, dtype=torch.float16, device="cuda")
torch.ops.albatross_rwkv7.relu_square(x)
print(found.source, x.tolist() == [9.0] * 8)
"""


@pytest.fixture(scope="module")
def built(kernels: Any) -> Loaded:
    found = load_kernels(EngineConfig.load())
    assert found is not None and found.source in ("cache", "prebuilt")
    return found


def prebuilt_root(folder: Path, built: Loaded, content: bytes) -> Path:
    """A kernels folder whose manifest says that ``content`` fits this card."""
    (folder / "csrc").symlink_to(kernels_folder() / "csrc")
    (folder / "file.so").write_bytes(content)
    row = {**asdict(built.context), "path": "file.so", "sha256": sha256_of(folder / "file.so")}
    (folder / "manifest.json").write_text(json.dumps({"kernels": [row]}), encoding="utf-8")
    return folder


def test_req_79_a_prebuilt_file_needs_no_tools(tmp_path: Path, built: Loaded) -> None:
    root = prebuilt_root(tmp_path, built, built.path.read_bytes())
    said = in_a_process(LOAD.format(root=f"Path({str(root)!r})"), CUDA_HOME="/nowhere", ALBATROSS_CACHE_DIR=str(tmp_path / "cache"))
    assert said.splitlines()[-1] == "prebuilt True" and not (tmp_path / "cache").exists()


def test_krn_3_a_text_in_place_of_a_prebuilt_file(tmp_path: Path, built: Loaded) -> None:
    root = prebuilt_root(tmp_path, built, b"this is a text\n")
    said = in_a_process(LOAD.format(root=f"Path({str(root)!r})"))
    warnings = [line for line in said.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1 and warnings[0].count(torch.__version__) == 2
    assert said.splitlines()[-1] == "cache True"


@pytest.mark.slow
def test_ptx_alone_runs_on_this_card(built: Loaded, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on PATH")
    said = in_a_process(LOAD.format(root="None"), ALBATROSS_KERNEL_ARCH="compute80", ALBATROSS_CACHE_DIR=str(tmp_path))
    assert said.splitlines()[-1] == "build True"


def test_build_info_names_this_torch(kernels: Any) -> None:
    assert torch.__version__.partition("+")[0] in kernels.build_info()


# --- Dense products ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 320, 1000])
@pytest.mark.parametrize(("inputs", "outputs"), [(768, 3072), (2048, 2048), (96, 2048), (2048, 96), (1024, 4104)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products(kernels: Any, rows: int, inputs: int, outputs: int, transposed: bool) -> None:
    x, weight = half(rows, inputs), half(outputs, inputs, scale=inputs**-0.5)
    wanted = x.double() @ weight.double().T
    stored = weight.T.contiguous() if transposed else weight
    for kind, limit in ((torch.float16, 1e-3), (torch.float32, 1e-4)):
        out = torch.full((rows, outputs), float("nan"), dtype=kind, device="cuda")
        kernels.matmul(x, stored, transposed, out, 0.0, workspace(), 0)
        assert error(out, wanted) < limit
        added = torch.randn(rows, outputs, device="cuda").to(kind)
        before = added.double()
        kernels.matmul(x, stored, transposed, added, 1.0, workspace(), 0)
        assert error(added, before + wanted) < limit


@pytest.mark.parametrize("transposed", [False, True])
def test_batched_products(kernels: Any, transposed: bool) -> None:
    x, weight = half(6, 33, 256), half(6, 512, 256, scale=1 / 16)
    wanted = x.double() @ weight.double().transpose(1, 2)
    out = torch.full((6, 33, 512), float("nan"), dtype=torch.float16, device="cuda")
    kernels.matmul(x, weight.transpose(1, 2).contiguous() if transposed else weight, transposed, out, 0.0, workspace(), 0)
    assert error(out, wanted) < 1e-3


def test_every_candidate_gives_the_product_and_the_same_bits_again(kernels: Any) -> None:
    x, weight, out = half(32, 2048), half(2048, 2048, scale=2048**-0.5), torch.empty(32, 2048, dtype=torch.float16, device="cuda")
    wanted = x.double() @ weight.double().T
    space = workspace()
    count = kernels.matmul_candidates(x, weight, False, out, 0.0, space, 8)
    assert 1 <= count <= 8
    for choice in range(count):
        results = []
        for _ in range(20):
            out.fill_(float("nan"))
            kernels.matmul(x, weight, False, out, 0.0, space, choice)
            results.append(out.clone())
        assert error(out, wanted) < 1e-3, choice
        assert all(torch.equal(each, results[0]) for each in results), choice
    with pytest.raises(RuntimeError, match=f"no candidate {count}"):
        kernels.matmul(x, weight, False, out, 0.0, space, count)


def test_a_workspace_that_is_too_small_is_refused_or_not_needed(kernels: Any) -> None:
    x, weight, out = half(1, 4096), half(4096, 4096, scale=1 / 64), torch.empty(1, 4096, dtype=torch.float16, device="cuda")
    for choice in range(kernels.matmul_candidates(x, weight, False, out, 0.0, workspace(), 16)):
        try:
            kernels.matmul(x, weight, False, out, 0.0, workspace(0), choice)
        except RuntimeError as problem:
            assert "needs a workspace of" in str(problem)
    assert kernels.matmul_candidates(x, weight, False, out, 0.0, workspace(), 16) >= 1


def test_a_captured_product_replays(kernels: Any) -> None:
    x, weight, out, space = half(64, 1024), half(1024, 1024, scale=1 / 32), half(64, 1024), workspace()
    kernels.matmul_candidates(x, weight, False, out, 0.0, space, 4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.matmul(x, weight, False, out, 0.0, space, 0)
    for _ in range(3):
        x.copy_(half(64, 1024))
        out.fill_(float("nan"))
        graph.replay()
        assert error(out, x.double() @ weight.double().T) < 1e-3


def test_threads_may_ask_at_the_same_time(kernels: Any) -> None:
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for rows in range(1, 20):
                x, weight = half(rows, 512), half(512, 512, scale=512**-0.5)
                out = torch.empty(rows, 512, dtype=torch.float16, device="cuda")
                with torch.cuda.stream(torch.cuda.Stream()):
                    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                    kernels.matmul_candidates(x, weight, False, out, 0.0, workspace(), 1 + seed)
                    kernels.matmul(x, weight, False, out, 0.0, workspace(), 0)
                    torch.cuda.current_stream().synchronize()
                assert error(out, x.double() @ weight.double().T) < 1e-3
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


# --- Refusals ----------------------------------------------------------------------------------------------------------


def test_launches_go_to_the_current_stream(kernels: Any) -> None:
    stream = torch.cuda.Stream()
    x = torch.ones(1 << 20, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(2)
        kernels.relu_square(x)
    stream.synchronize()
    assert bool((x == 4).all())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.zeros(8, device="cuda"), "h must be Half, is Float"),
        (lambda: half(8, 16)[:, :8], "h must be contiguous"),
        (lambda: half(9)[1:], "h must start at a multiple of 16 bytes"),
        (lambda: half(12), "must be a positive multiple of 8, is 12"),
    ],
)
def test_str_3_what_a_kernel_cannot_read_is_refused(kernels: Any, make: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        kernels.relu_square(make())


def test_str_3_shapes_and_devices_are_compared(kernels: Any) -> None:
    table, x = half(100, 64), half(3, 64)
    ids, last = torch.zeros(3, dtype=torch.int32, device="cuda"), torch.zeros(4, dtype=torch.int32, device="cuda")
    kernels.embed(table, ids, last, x)
    assert torch.equal(x, table[:1].expand(3, -1))
    with pytest.raises(RuntimeError, match=r"embed: x must have the shape \[3, 64\], has \[2, 64\]"):
        kernels.embed(table, ids, last, half(2, 64))
    with pytest.raises(RuntimeError, match="embed: ids must be Int, is Long"):
        kernels.embed(table, ids.long(), last, x)
    with pytest.raises(RuntimeError, match="embed: last is on cpu, the first tensor on cuda"):
        kernels.embed(table, ids, last.cpu(), x)
    with pytest.raises(RuntimeError, match="the width must be a positive multiple of 64, is 72"):
        kernels.embed(half(100, 72), ids, last, half(3, 72))
    kernels.embed(table, ids[:0], last, x[:0])


def test_str_3_lists_of_products_are_checked(kernels: Any) -> None:
    weight, x, out = half(64, 64), half(2, 64), half(2, 64)
    with pytest.raises(RuntimeError, match="takes at most 8 rows, got 9"):
        kernels.gemv([weight], [half(9, 64)], [half(9, 64)], [0], False)
    with pytest.raises(RuntimeError, match="takes 1 to 8 products, got 9"):
        kernels.gemv([weight] * 9, [x] * 9, [out] * 9, [0] * 9, False)
    with pytest.raises(RuntimeError, match="1 weights, but 2 inputs"):
        kernels.grouped_gemm([weight], [x, x], [out], [0], False)
    with pytest.raises(RuntimeError, match="no activation has the number 4"):
        kernels.gemv([weight], [x], [out], [4], False)
    with pytest.raises(RuntimeError, match="can have no activation"):
        kernels.gemv([weight], [x], [out], [1], True)
    with pytest.raises(RuntimeError, match="got no weights|no tensor arguments"):
        kernels.gemv([], [], [], [], False)


def test_mutation_is_declared(kernels: Any) -> None:
    changed = {
        name: [argument.name for argument in getattr(kernels, name).default._schema.arguments if argument.alias_info is not None]
        for name in ("embed", "mix", "commit", "wkv", "gemv", "sparse_linear", "matmul", "relu_square")
    }
    assert changed == {
        "embed": ["x"],
        "mix": ["shift", "tail", "out"],
        "commit": ["shift"],
        "wkv": ["state", "v_first", "out"],
        "gemv": ["outputs"],
        "sparse_linear": ["x", "partial", "counters"],
        "matmul": ["output", "workspace"],
        "relu_square": ["h"],
    }
