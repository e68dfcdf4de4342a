"""Imports go one way. Looked at in the source, and tried in fresh interpreters where the forbidden packages cannot be imported."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import peers
import pytest
from fresh import run_python


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name. ``_kernels`` is run by hand and imported by nothing."""
    root = folder_of(package)
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [package, *path.relative_to(root).with_suffix("").parts]
        if "_kernels" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.Module, *, everywhere: bool) -> Iterator[str]:
    """Dotted names in import statements; ``everywhere``: those inside functions too. TYPE_CHECKING blocks do not run."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif everywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))


def names(path: Path, *, everywhere: bool = False) -> set[str]:
    return set(imported(ast.parse(path.read_text(encoding="utf-8")), everywhere=everywhere))


def tops(path: Path, *, everywhere: bool = False) -> set[str]:
    return {name.partition(".")[0] for name in names(path, everywhere=everywhere)}


def test_only_model_imports_torch_and_only_serving_imports_fastapi() -> None:
    for name, path in modules("albatross_plugin").items():
        found = tops(path)
        if not name.startswith("albatross_plugin.model"):
            assert "torch" not in found, name
        if not name.startswith("albatross_plugin.serving"):
            assert found.isdisjoint({"fastapi", "starlette", "pydantic", "uvicorn"}), name


def test_the_engine_reaches_neither_model_nor_http() -> None:
    for name, path in modules("albatross_plugin").items():
        if name.startswith("albatross_plugin.engine"):
            assert tops(path, everywhere=True).isdisjoint({"torch", "fastapi", "starlette", "numpy"}), name
            above = ("model", "serving", "adapter", "completion", "hooks", "bench", "runner")
            assert not any(found.startswith(f"albatross_plugin.{each}") for found in names(path, everywhere=True) for each in above), name


def test_plugin_and_host_do_not_know_each_other() -> None:
    for name, path in modules("albatross_plugin").items():
        found = tops(path, everywhere=True)
        if not name.startswith("albatross_plugin.runner"):
            assert found.isdisjoint({"utils", "routes", "global_var"}), name
        if not name.startswith("albatross_plugin.bench"):
            assert "host_stub" not in found, name
    for name, path in modules("host_stub").items():
        assert "albatross_plugin" not in tops(path, everywhere=True), name


@pytest.mark.parametrize("package", ["albatross_plugin", "host_stub"])
def test_no_two_modules_import_each_other(package: str) -> None:
    known = modules(package)
    graph = {name: (names(path) & known.keys()) - {name} for name, path in known.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


BLOCKED_IMPORTS = """
import importlib, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {blocked!r}):
            raise AssertionError(f"{{name}} is imported")

sys.meta_path.insert(0, Block())
for module in {modules!r}:
    importlib.import_module(module)
"""
HTTP = ["fastapi", "starlette", "pydantic", "uvicorn"]


@pytest.mark.parametrize(
    ("part", "blocked", "needs"),
    [
        ("engine", ["torch", "numpy", "albatross_plugin.model", "albatross_plugin.serving", "albatross_plugin.adapter", "host_stub", *HTTP], []),
        ("", ["torch", "numpy", "albatross_plugin.model", "albatross_plugin.serving", "host_stub", *HTTP], []),
        ("model", ["albatross_plugin.serving", "albatross_plugin.adapter", "host_stub", *HTTP], ["torch"]),
        ("serving", ["torch", "albatross_plugin.model", "host_stub"], ["fastapi", "prometheus_client"]),
    ],
)  # fmt: skip
def test_parts_of_the_plugin_work_without_the_others(tmp_path: Path, part: str, blocked: list[str], needs: list[str]) -> None:
    for package in needs:
        peers.need(package)
    inside = [name for name, path in modules("albatross_plugin").items() if path.parent == folder_of("albatross_plugin") / part]
    assert inside
    run_python(BLOCKED_IMPORTS.format(blocked=blocked, modules=inside), tmp_path)


def test_the_host_works_without_the_plugin(tmp_path: Path) -> None:
    for package in ("fastapi", "uvicorn", "httpx", "httptools"):
        peers.need(package)
    run_python(BLOCKED_IMPORTS.format(blocked=["albatross_plugin"], modules=list(modules("host_stub"))), tmp_path)
