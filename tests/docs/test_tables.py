"""Tables and lists against the code that they describe."""

from __future__ import annotations

import logging
import re

import pytest
from docs.pages import ROOT, defined, first_sentence, rows, text_of

from albatross_plugin.config import environment_table
from albatross_plugin.strategy import AlbatrossStrategy, is_albatross_strategy, parse_albatross_strategy


def code(cell: str) -> str:
    return cell.strip("`")


def test_environment_page_holds_every_variable_with_its_default_and_meaning() -> None:
    said = [(code(name), code(default), meaning) for name, default, meaning in rows("docs/environment.md", "variable")]
    assert said == environment_table()


def test_strategy_examples_come_true(caplog: pytest.LogCaptureFixture) -> None:
    examples = rows("docs/strategy.md", "text")
    assert len(examples) >= 5
    for text, workers, batch, device, warnings in examples:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="albatross_plugin.strategy"):
            assert parse_albatross_strategy(code(text)) == AlbatrossStrategy(int(workers), int(batch), device or None)
        assert len(caplog.records) == int(warnings), text


@pytest.mark.parametrize("page", ["README.md", "docs/README.zh-CN.md", "docs/strategy.md"])
def test_strategy_keys_and_defaults(page: str, caplog: pytest.LogCaptureFixture) -> None:
    heading = "键" if "zh" in page else "key"
    fields = {"workers": "worker_num", "batch": "batch_size", "device": "device"}
    table = rows(page, heading)
    assert [code(row[0]) for row in table] == list(fields)
    for key, others, *_ in table:
        for name in [code(key), *re.findall(r"`(\w+)`", others)]:
            value = "cpu" if code(key) == "device" else "7"
            parsed = parse_albatross_strategy(f"albatross {name}={value}")
            assert str(getattr(parsed, fields[code(key)])) == value
    assert caplog.records == []
    defaults = {code(row[0]): " ".join(row[2:]) for row in table}
    assert "1" in defaults["workers"] and "32" in defaults["batch"] and "`cuda`" in defaults["device"]


def test_strategies_of_the_readme_are_ours() -> None:
    for text, _ in rows("README.md", "strategy"):
        assert is_albatross_strategy(code(text))


def test_structure_page_has_a_line_for_every_module() -> None:
    wanted = {
        f"- `{path.relative_to(ROOT).as_posix()}`: {first_sentence(path)}"
        for package in ("albatross_plugin", "host_stub")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    said = set(re.findall(r"^- `.*\.py`: .*$", text_of("docs/structure.md"), flags=re.MULTILINE))
    assert said == wanted, "a line is the path of a module and the first sentence of its docstring"


def test_names_on_the_way_of_a_request_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`\s`([\w.]+)`", text_of("docs/structure.md"))
    assert len(named) >= 20
    for path, name in named:
        assert name in defined(ROOT / path), f"{path} has no {name}"


def test_dependencies_page_names_every_package_of_the_project() -> None:
    page = text_of("docs/dependencies.md")
    project = text_of("pyproject.toml")
    extras = project[project.index("[project.optional-dependencies]") : project.index("[project.entry-points")]
    for name in set(re.findall(r"\"([A-Za-z][\w-]*)", extras)) - {"albatross-plugin"}:
        assert re.search(rf"\b{name}\b", page), name
    for name in re.findall(r"^(\w+) = \[", extras, flags=re.MULTILINE):
        assert f"| `{name}` |" in page, name


def test_changelog_fragments_have_a_kind_and_a_text() -> None:
    fragments = [path for path in (ROOT / "docs/changelog.d").iterdir() if path.name != "README.md"]
    for path in fragments:
        assert re.fullmatch(r"(\d+|\+\w+)\.(feature|change|fix)\.md", path.name), path.name
        assert path.read_text(encoding="utf-8").strip()
    assert "<!-- the next release goes below this line -->" in text_of("docs/changelog.md")
