"""A checkout of the Runner: where its main.py is, and which form its code has. Read from the files; nothing is imported."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

SERVED = "v1.6.1 and later are served"
BACKEND = "backend-python"
# What every Runner has that can be served.
PARTS = ("global_var.py", "utils/rwkv.py", "routes/completion.py", "routes/config.py")


class NotServed(Exception):
    """The launcher cannot serve this; the text says why, and what to do."""


@dataclass(frozen=True)
class Checkout:
    """``main``: the Runner's main.py. ``form``: the signature that was found, in words."""

    main: Path
    form: str

    @property
    def folder(self) -> Path:
        return self.main.parent


def find_main(argument: str | None, current: Path) -> Path:
    """The Runner's main.py: the argument (a file, or a folder with one in it), else here, else in backend-python. Raises NotServed."""
    if argument is not None:
        start = (current / argument).resolve()
        found = [start] if start.is_file() else _mains(start)
        if not found:
            raise NotServed(f"{argument}: no main.py of the Runner is there")
    else:
        found = _mains(current.resolve())
    if len(found) > 1:
        raise NotServed(f"two Runners are here, {found[0]} and {found[1]}; name the one to start")
    if not found:
        raise NotServed(f"no Runner is in {current}; start this in its folder, or name its {BACKEND}/main.py")
    return found[0]


def _mains(folder: Path) -> list[Path]:
    return [path for path in (folder / "main.py", folder / BACKEND / "main.py") if path.is_file() and (path.parent / PARTS[0]).is_file()]


def look_at(main: Path) -> Checkout:
    """Tell which Runner this is. Raises NotServed for one that is too old, and for what is none."""
    folder = main.parent
    lacking = [part for part in PARTS if not (folder / part).is_file()]
    if lacking:
        raise NotServed(f"{main} is not the main.py of a Runner: {', '.join(lacking)} is not beside it")
    completion, config, rwkv = (_parsed(folder / f"{name}.py") for name in ("routes/completion", "routes/config", "utils/rwkv"))
    if any(isinstance(node, ast.Name) and node.id == "STRATEGY_REGEX" for node in ast.walk(config)):
        raise NotServed(f"this Runner takes no strategies but its own, as those up to v1.6.0; {SERVED}")
    functions = {node.name: node for node in ast.walk(completion) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    evaluate = functions.get("eval_rwkv") or functions.get("eval")
    names = {node.name for node in ast.walk(rwkv) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    if evaluate is None or not {"RWKV", "AbstractRWKV"} <= names:
        raise NotServed(f"this Runner has no function that completions go through; {SERVED}")
    builtin = (folder / "albatross_engine" / "config.py").is_file()
    return Checkout(main, _form(evaluate, builtin, "load_rwkv_state" in names, "chat_template_old" in functions))


def _form(evaluate: ast.FunctionDef | ast.AsyncFunctionDef, builtin: bool, states: bool, templates: bool) -> str:
    """The versions between which the code has this form, and the name and last arguments of the function that tell them apart."""
    arguments = [argument.arg for argument in evaluate.args.args]
    if evaluate.name == "eval_rwkv":
        versions = "v1.8.1 to v1.9.5" if states else "v1.7.6 to v1.8.0" if templates else "v1.6.1 to v1.7.5"
    elif "stop_token_ids" not in arguments:
        versions = "v1.9.6 or v1.9.7"
    else:
        versions = "v1.9.11 or later" if builtin else "v1.9.8 to v1.9.10"
    return f"{versions} ({evaluate.name} with {len(arguments)} arguments)"


def check_python(checkout: Checkout, path: list[str]) -> None:
    """Raises NotServed when this Python lacks packages that the Runner imports at its start, or has this plugin twice."""
    lacking = sorted(name for name in _imports(checkout) if importlib.util.find_spec(name) is None)
    if lacking:
        raise NotServed(
            f"this Python ({sys.executable}) lacks {', '.join(lacking)}, which the Runner needs; "
            "install this plugin into the Python that starts the Runner, and use that one"
        )
    copies = {os.path.realpath(str(each.locate_file("."))): each.version for each in distributions(name="albatross-plugin", path=path)}
    if len(copies) > 1:
        found = ", ".join(f"{version} in {folder}" for folder, version in copies.items())
        raise NotServed(f"albatross-plugin is installed twice: {found}; uninstall one of them")


def _imports(checkout: Checkout) -> set[str]:
    """Top-level packages that main.py and what it imports of the checkout need at once; those tried for in vain are no need."""
    folder, needed, seen, todo = checkout.folder, set[str](), set[Path](), [checkout.main]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _imported(_parsed(path)):
            top = name.partition(".")[0]
            local = folder.joinpath(*name.split("."))
            if (folder / top).is_dir() or (folder / f"{top}.py").is_file():
                todo += [each for each in (local.with_suffix(".py"), local / "__init__.py") if each.is_file()]
            elif top not in sys.stdlib_module_names:
                needed.add(top)
    return needed


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise NotServed(f"{path} cannot be read: {error}") from error
