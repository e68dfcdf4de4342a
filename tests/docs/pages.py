"""Reading the documents: links, fenced code, headings, tables, and the names of code that they mention."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "changelog.d" or page.name == "README.md"),
    *sorted((ROOT / "kernels").glob("*.md")),
]


def text_of(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def fences(page: str | Path) -> list[tuple[str, str]]:
    """(language, content) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), flags=re.MULTILINE | re.DOTALL)


def prose(page: str | Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def links(page: str | Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def headings(page: str | Path) -> list[tuple[int, str]]:
    return [(len(marks), title.strip()) for marks, title in re.findall(r"^(#+) (.*)$", prose(page), flags=re.MULTILINE)]


def anchor(title: str) -> str:
    """The fragment by which a heading is reached where Markdown is shown."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def rows(page: str | Path, heading: str) -> list[list[str]]:
    """Cells of the first table whose head starts with ``heading``, without code marks."""
    lines = text_of(page).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def first_sentence(module: Path) -> str:
    """How a module introduces itself: its docstring up to the first full stop."""
    words = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    sentence = re.split(r"(?<=[.?!])\s", " ".join(words.split("\n\n")[0].split()), maxsplit=1)[0]
    return sentence.replace("``", "`").rstrip(".:")


def defined(module: Path) -> set[str]:
    """Dotted names of functions, classes, methods and module constants."""
    found: set[str] = set()

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(prefix + child.name)
                walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                found.add(prefix + child.target.id)
            elif isinstance(child, ast.Assign):
                found.update(prefix + target.id for target in child.targets if isinstance(target, ast.Name))

    walk(ast.parse(module.read_text(encoding="utf-8")), "")
    return found
