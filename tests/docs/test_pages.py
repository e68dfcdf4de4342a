"""Every page: links lead somewhere, commands exist, the translation says the same."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from docs.pages import PAGES, ROOT, anchor, fences, headings, links, prose, text_of

IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        target, _, fragment = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.is_relative_to(ROOT) and file.exists(), link
        if fragment:
            assert fragment in {anchor(title) for _, title in headings(file)}, link


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_pages_have_one_title_and_whole_fences(page: Path) -> None:
    assert [level for level, _ in headings(page)].count(1) == 1
    assert text_of(page).count("\n```") % 2 == 0
    assert text_of(page).endswith("\n")


def test_every_page_is_reached_from_the_index() -> None:
    todo, seen = [ROOT / "docs" / "index.md"], set()
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        todo += [
            (page.parent / link.partition("#")[0]).resolve() for link in links(page) if not link.startswith("https://") and link[0] != "#"
        ]
    lost = [page for page in PAGES if page not in seen and "changelog.d" not in page.parts]
    assert lost == []


def test_both_languages_have_the_same_parts() -> None:
    english, chinese = headings("README.md"), headings("docs/README.zh-CN.md")
    assert [level for level, _ in english] == [level for level, _ in chinese]
    assert fences("README.md") == fences("docs/README.zh-CN.md")
    # Table by table the same first column, and as many list items.
    first = [re.findall(r"^\| (`[^|]*`) \|", prose(page), flags=re.MULTILINE) for page in ("README.md", "docs/README.zh-CN.md")]
    assert first[0] == first[1] and len(first[0]) >= 8
    items = [len(re.findall(r"^- ", prose(page), flags=re.MULTILINE)) for page in ("README.md", "docs/README.zh-CN.md")]
    assert items[0] == items[1]


def commands() -> list[tuple[str, list[str]]]:
    """(page, words) of every command line in a shell block; ``&&`` separates commands."""
    found = []
    for page in PAGES:
        for language, content in fences(page):
            if language in ("sh", "bash", "shell", "bat"):
                lines = content.replace("\\\n", " ").splitlines()
                if language == "bat":
                    lines = [line.replace("\\", "/") for line in lines]
                parts = [part for line in lines if line.strip() and not line.startswith("#") for part in line.split("&&")]
                found += [(str(page.relative_to(ROOT)), shlex.split(part)) for part in parts]
    return found


def test_logs_and_pages_name_no_folder_of_a_machine() -> None:
    folders = re.compile(r"(?<![\w.~/<>-])/(?:work|tmp|root|home|opt|usr/lib|dev/shm|Users)/\S+")
    kept = [file for file in (ROOT / "docs" / "benchmarks").iterdir() if file.suffix in (".log", ".jsonl")]
    assert kept
    found = {file.name: match[0] for file in [*PAGES, *kept] if (match := folders.search(file.read_text(encoding="utf-8")))}
    assert found == {}


def test_commands_name_environments_modules_and_extras_that_exist() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    extras = set(importlib.metadata.metadata("albatross-plugin").get_all("Provides-Extra", []))
    checked = {"tox": 0, "module": 0, "extra": 0}
    for page, words in commands():
        if "tox" in words[:1]:
            assert words[1] == "run", page
            for name in words[words.index("-e") + 1].split(",") if "-e" in words else []:
                assert f"testenv:{name}" in tox.sections(), (page, name)
            checked["tox"] += 1
        if "-m" in words and "python" in words[words.index("-m") - 1]:
            module = words[words.index("-m") + 1]
            assert module in ("pip", "venv") or importlib.util.find_spec(module) is not None, (page, module)
            checked["module"] += 1
        for word in words:
            match = re.fullmatch(r"albatross-plugin\[(.*)\]", word)
            if match:
                assert set(match[1].split(",")) <= extras, (page, word)
                checked["extra"] += 1
    assert min(checked.values()) > 0


def test_ci_runs_the_command_of_the_readme() -> None:
    (command,) = (line for _, block in fences("README.md") for line in block.splitlines() if line.endswith("tox run"))
    assert f"({command})" in text_of(".ci/run")


def test_options_of_commands_exist() -> None:
    known = {
        module: set(re.findall(r"\"(--[a-z-]+)\"", (ROOT / file).read_text(encoding="utf-8")))
        for module, file in {"host_stub": "host_stub/__main__.py", "host_stub.demo": "host_stub/demo.py"}.items()
    }
    seen = 0
    for page, words in commands():
        module = words[words.index("-m") + 1] if "-m" in words else ""
        if module in known:
            used = {word for word in words if word.startswith("--")}
            assert used <= known[module], (page, used - known[module])
            seen += len(used)
    assert seen > 0
