"""Run the measurements that docs/benchmarks.md quotes, keep their logs, and put their summaries into the page.

    python -m albatross_plugin.bench.record docs/benchmarks.md

Logs go to the folder ``benchmarks`` beside the page. In the page, what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is
replaced. Best on a machine that does nothing else; takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from albatross_plugin.bench.report import SUMMARY

RUNS = {"cpu-host-comparison": "cpu_host_comparison", "memory-run": "memory_run", "structured-output": "grammar_benchmark"}
# A run that missed a wanted figure has been measured all the same.
MEASURED = (0, 2)


def quoted(name: str, log: str) -> str:
    """The part of a page for one log: where it is from, and its summary. Raises ValueError for a log without one."""
    head, found, summary = log.partition(f"\n{SUMMARY}\n")
    if not found:
        raise ValueError(f"the log of {name} has no summary")
    facts = dict(re.findall(r"^(command|date|machine|versions): (.+)$", head, flags=re.MULTILINE))
    return (
        f"Measured {facts['date']} on: {facts['machine']}. {facts['versions']}. Log: [{name}.log](benchmarks/{name}.log), of\n\n"
        f"```sh\n{facts['command']}\n```\n\n{summary.strip()}\n"
    )


def put(page: str, name: str, text: str) -> str:
    """The page with ``text`` between the marks of ``name``. Raises ValueError if they are not there, once each."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page has no single pair of marks for {name}")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m albatross_plugin.bench.record", description=__doc__, formatter_class=form)
    parser.add_argument("page", type=Path, help="the page to put the figures into")
    parser.add_argument("--only", choices=sorted(RUNS), action="append", help="run only this one (may be repeated)")
    parser.add_argument("--no-run", action="store_true", help="quote the logs that are there")
    options = parser.parse_args(arguments)
    for name in options.only or RUNS:
        log = options.page.parent / "benchmarks" / f"{name}.log"
        if not options.no_run:
            command = [sys.executable, "-m", f"albatross_plugin.bench.{RUNS[name]}", "--log", str(log)]
            status = subprocess.run(command).returncode
            if status not in MEASURED:
                sys.stderr.write(f"{name} ended with status {status}; the page was left as it is\n")
                return 1
        page = put(options.page.read_text(encoding="utf-8"), name, quoted(name, log.read_text(encoding="utf-8")))
        options.page.write_text(page, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
