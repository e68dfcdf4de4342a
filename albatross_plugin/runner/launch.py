"""Starting the Runner in this process, with hooks on the import of its modules."""

from __future__ import annotations

import io
import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import albatross_plugin
from albatross_plugin.runner.checkout import Checkout, NotServed, check_python, find_main, look_at
from albatross_plugin.runner.finder import AfterImport

logger = logging.getLogger(__name__)

KEEP_BUILTIN = "--keep-builtin"
ALLOW_HOST = "--allow-host"
USAGE = f"""usage: albatross-runner [PATH/TO/backend-python/main.py] [{KEEP_BUILTIN}] [{ALLOW_HOST} NAME] [flags of the Runner]

Starts an unmodified RWKV-Runner with the plugins that are installed. Without a path the Runner is looked for in the current folder
and in backend-python below it. {KEEP_BUILTIN}: strategies of the Runner's own albatross mode (v1.9.11 and later) stay its own.
{ALLOW_HOST}: a name of this machine, such as runner.example.org, under which the routes of plugins are reached; may stand several times.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 2 when there is nothing that can be served, with the reason in words on the error stream."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _write_anything()
    _show_log()
    if _is_for_python(arguments):
        return subprocess.call([sys.executable, *arguments])
    keep_builtin = KEEP_BUILTIN in arguments
    arguments = [each for each in arguments if each != KEEP_BUILTIN]
    try:
        allowed = _take_names(arguments)
    except NotServed as error:
        sys.stderr.write(f"albatross-runner: {error}\n")
        return 2
    named = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    asks_help = bool({"-h", "--help"} & set(arguments))
    try:
        checkout = look_at(find_main(named, Path.cwd()))
        _enter(checkout)
        check_python(checkout, sys.path)
    except NotServed as error:
        if asks_help:
            sys.stdout.write(f"{USAGE}\nThe flags of the Runner are shown where one is found: {error}\n")
            return 0
        late = next((each for each in arguments if Path(each).name == "main.py"), None)
        hint = f"; the path comes before the flags: albatross-runner {late} ..." if named is None and late is not None else ""
        sys.stderr.write(f"albatross-runner: {error}{hint}\n")
        return 2
    if asks_help:
        sys.stdout.write(f"{USAGE}\nFlags of the Runner:\n")
    run(checkout, arguments, keep_builtin=keep_builtin, allowed_names=allowed)
    return 0


def _take_names(arguments: list[str]) -> list[str]:
    """The names after ``--allow-host``, which are taken out. Raises NotServed where one is missing."""
    names = []
    while ALLOW_HOST in arguments:
        place = arguments.index(ALLOW_HOST)
        name = arguments[place + 1] if place + 1 < len(arguments) else ""
        if not name or name.startswith("-"):
            raise NotServed(f"{ALLOW_HOST} needs a name, such as {ALLOW_HOST} runner.example.org")
        names.append(name)
        del arguments[place : place + 2]
    return names


def _is_for_python(arguments: Sequence[str]) -> bool:
    """The Runner's desktop client runs its other scripts and pip by the same executable as its server."""
    first = arguments[0] if arguments else ""
    return first in ("-m", "-c") or (first.endswith(".py") and Path(first).name != "main.py")


def _write_anything() -> None:
    """The Runner prints what comes, paths and prompts among it; where the output's encoding has no such letter, its escape is written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _show_log() -> None:
    """The Runner sends the log to a file of its own; what this package says shall be seen too."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours = logging.getLogger("albatross_plugin")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)


def _enter(checkout: Checkout) -> None:
    """What ``python main.py`` would have set up: its folder first on the path, and none of what brought this module here."""
    brought = {"", str(Path.cwd()), sys.argv[0], str(Path(sys.argv[0]).parent), str(Path(sys.argv[0]).resolve().parent)}
    if sys.path and sys.path[0] in brought:
        sys.path.pop(0)
    sys.path.insert(0, str(checkout.folder))
    # The Runner reads its flags from here when it is set, in place of the command line.
    os.environ.pop("RWKV_RUNNER_PARAMS", None)


def run(checkout: Checkout, arguments: Sequence[str], *, keep_builtin: bool, allowed_names: Sequence[str] = ()) -> None:
    """Run main.py as a script, to its end. A model that is still loaded then is released."""
    from albatross_plugin.runner.host import RunnerHost
    from albatross_plugin.runner.plugins import Plugins
    from albatross_plugin.runner.points.table import POINTS, Installed

    host = RunnerHost(Plugins(), keeps_builtin=keep_builtin, allowed_names=allowed_names)
    points = [point for point in POINTS if not (keep_builtin and point.late)]
    installed = Installed()

    def after(module: ModuleType) -> None:
        for point in points:
            if point.module == module.__name__:
                installed.install(point, module, host)
        if module.__name__ == "main":
            late = [] if keep_builtin else [p.name for p in points if p.late and _exists(checkout, p.module)]
            logger.info("%s", _summary(checkout, host.plugins.names, installed.in_force + late, installed.missing))

    sys.meta_path.insert(0, AfterImport({point.module: after for point in points}))
    sys.argv = [str(checkout.main), *arguments]
    try:
        runpy.run_path(str(checkout.main), run_name="__main__")
    finally:
        host.release()


def _exists(checkout: Checkout, module: str) -> bool:
    return checkout.folder.joinpath(*module.split(".")).with_suffix(".py").is_file()


def _summary(checkout: Checkout, plugins: Sequence[str], in_force: Sequence[str], missing: dict[str, str]) -> str:
    lacking = "".join(f"; {name} is not in force: {reason}" for name, reason in missing.items())
    return (
        f"albatross-runner {albatross_plugin.__version__}: RWKV-Runner {checkout.form}; "
        f"plugins: {', '.join(plugins) or 'none'}; in force: {', '.join(in_force) or 'nothing'}{lacking}"
    )
