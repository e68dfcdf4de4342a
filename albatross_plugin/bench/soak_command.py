"""What the commands of the soak share: the options for their files, and the way from a run to an exit status."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from albatross_plugin.bench.checkpoints import CheckpointError
from albatross_plugin.bench.host import HostFailed
from albatross_plugin.bench.openai_client import HttpError
from albatross_plugin.bench.report import Log

STOPPED = (CheckpointError, HostFailed, HttpError)
"""What ends every run in words, with exit status 1."""


def add_files(parser: argparse.ArgumentParser, *, cache: bool = True) -> None:
    """``cache``: the run takes a checkpoint that is kept."""
    add = parser.add_argument
    if cache:
        add("--cache", type=Path, help="folder for the checkpoint (default: the user's cache folder)")
    add("--json", type=Path, help="write the figures to this file")
    add("--log", type=Path, help="write the log to this file too")


def run_logged(
    module: str,
    arguments: Sequence[str] | None,
    options: argparse.Namespace,
    run: Callable[[argparse.Namespace, Log], Awaitable[int]],
    stopped: tuple[type[Exception], ...] = STOPPED,
) -> int:
    """The exit status of ``run``, or 1 and a line in the log for an error that is one of ``stopped``."""

    async def measured() -> int:
        return await run(options, log)

    with Log(options.log) as log:
        log.head(module, arguments if arguments is not None else sys.argv[1:])
        try:
            return asyncio.run(measured())
        except stopped as error:
            log.line(f"stopped: {error}")
            return 1
