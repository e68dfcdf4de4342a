"""docs/hooks.md and the plugin's hooks against the specifications."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from host_stub.hookspecs import HookSpecs
from host_stub.plugins import Plugins

SPECS = {name: function for name, function in vars(HookSpecs).items() if name.startswith("rwkv_runner_")}
PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


def sections() -> dict[str, tuple[list[str], str]]:
    """Arguments and text of each hook on the page."""
    parts = re.split(r"^### (rwkv_runner_\w+)\(([^)]*)\)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: (re.findall(r"\w+", arguments), text) for name, arguments, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }


def test_the_page_names_every_hook_with_its_arguments() -> None:
    documented = {name: arguments for name, (arguments, _) in sections().items()}
    specified = {name: [arg for arg in inspect.signature(function).parameters if arg != "self"] for name, function in SPECS.items()}
    assert documented == specified


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_page_says_which_result_counts_and_explains_the_arguments(name: str) -> None:
    arguments, text = sections()[name]
    first = bool(SPECS[name].rwkv_runner_spec["firstresult"])
    assert f"- First result: {'yes' if first else 'no'}\n" in text
    assert [argument for argument in arguments if f"`{argument}`" not in text] == []


def test_every_specification_says_what_it_wants() -> None:
    assert [name for name, function in SPECS.items() if not inspect.getdoc(function)] == []


def test_the_plugin_implements_every_hook() -> None:
    plugins = Plugins()
    plugins.register(importlib.import_module("albatross_plugin.hooks"), "albatross")
    implemented = {name for name in SPECS if getattr(plugins.hook, name).get_hookimpls()}
    assert implemented == set(SPECS)
