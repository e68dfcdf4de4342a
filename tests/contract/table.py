"""Put Runners through the checks of host_checks.py and print a table: a row for each check, a column for each Runner.

    python tests/contract/table.py --runner PATH [--runner PATH ...]

PATH is a checkout, or its backend-python. Run it with the Python that starts the Runner; the plugin, httpx, psutil and torch must be there.
Everything runs on the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contract import host_checks
from contract.host_checks import Check
from contract.models import Models, write_models
from contract.served import Served, launcher

from albatross_plugin.runner.checkout import Checkout, find_main, look_at

NOT_THERE = "not in this version"
UNCHANGED = "no file changed"


def checks_for(checkout: Checkout) -> dict[Check, str]:
    """Every check, and why it is not made of this Runner; "" when it is."""
    folder = checkout.folder
    source = {path: (folder / path).read_text(encoding="utf-8") for path in ("utils/rwkv.py", "routes/completion.py", "routes/config.py")}
    lacking = {}
    if "load_rwkv_state" not in source["utils/rwkv.py"]:
        lacking |= {host_checks.state: NOT_THERE, host_checks.state_before_load: NOT_THERE}
    if "tool_calls" not in source["routes/completion.py"]:
        lacking |= {host_checks.tools: NOT_THERE, host_checks.tool_stream: NOT_THERE}
    if "RWKV_V7_ON" not in source["utils/rwkv.py"]:
        lacking |= {host_checks.other_strategy: "its own loader knows no RWKV-7"}
    llama = (folder / "utils" / "llama.py").is_file()
    checks = [check if check is not host_checks.gguf or llama else host_checks.gguf_of_old for check in host_checks.CHECKS]
    return {check: lacking.get(check, "") for check in checks}


def column(checkout: Checkout, models: Models, log: bool) -> dict[str, str]:
    """The cells of one Runner: name of a check to what came of it."""
    cells = {}
    before = fingerprint(checkout.folder)
    with Served(launcher(checkout.main)) as server:
        for check, lacking in checks_for(checkout).items():
            cells[check.__doc__ or ""] = lacking or outcome(check, server, models)
        if log:
            sys.stderr.write(server.text())
    with Served(launcher(checkout.main, "--webui")) as server:
        cells[host_checks.deploy.__doc__ or ""] = outcome(host_checks.deploy, server, models)
        if log:
            sys.stderr.write(server.text())
    cells[UNCHANGED] = "ok" if fingerprint(checkout.folder) == before else "FAILED"
    return cells


def outcome(check: Check, server: Served, models: Models) -> str:
    try:
        check(server, models)
    except Exception as error:
        sys.stderr.write(f"{check.__doc__}: {type(error).__name__}: {error}\n")
        return "FAILED"
    return "ok"


def fingerprint(folder: Path) -> dict[str, str]:
    """What every file of a checkout holds; what Python compiled is not the checkout's."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks of the launcher on checkouts of RWKV-Runner, as a table.")
    parser.add_argument("--runner", action="append", required=True, metavar="PATH", help="a checkout; may be given several times")
    parser.add_argument("--log", action="store_true", help="also the Runners' own output, on the error stream")
    options = parser.parse_args(argv)
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        models = write_models(Path(folder))
        for path in options.runner:
            checkout = look_at(find_main(path, Path.cwd()))
            name = checkout.folder.parent.name if checkout.folder.name == "backend-python" else checkout.folder.name
            sys.stderr.write(f"{name}: {checkout.form}\n")
            columns[name] = column(checkout, models, options.log)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "fastapi", "pydantic", "starlette", "sse-starlette", "uvicorn"))
    print(f"Python {platform.python_version()}, {packages}; {platform.system()}, {os.cpu_count()} cores\n")
    print("| check |" + "".join(f" {name} |" for name in columns))
    print("|---|" + "---|" * len(columns))
    for row in dict.fromkeys(row for cells in columns.values() for row in cells):
        print(f"| {row} |" + "".join(f" {cells.get(row, '')} |" for cells in columns.values()))
    return int(any("FAILED" in cells.values() for cells in columns.values()))


if __name__ == "__main__":
    sys.exit(main())
