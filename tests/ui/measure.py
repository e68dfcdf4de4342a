"""Prints what a batch of 1,000 items costs the page: ``python tests/ui/measure.py``. Its stream is recorded from F1 on the CPU, then replayed."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import tiny
from cases.scripts import tokens, write_script
from host.live import LiveHost
from ui import steps
from ui.browsing import Forwarder, PageErrors, Pages, running_browser
from ui.recording import Replay, play, record

from albatross_plugin import hooks

PROMPT = "Once upon a time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--speed", type=float, default=1.0, help="of the replay, against the recording's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    body = {"prompt": PROMPT, "count": options.items, "max_tokens": options.max_tokens, "seed": 1}
    replay = Replay()
    replay.speed = options.speed
    with LiveHost(("albatross", hooks)) as host:
        host.switch(
            tiny.write(folder / "f1.pth", tiny.random_checkpoint()), f"albatross device=cpu batch={options.batch}"
        ).raise_for_status()
        replay.recording = record(host, body)
    print(f"stream: {replay.recording.size:,} bytes in {len(replay.recording.parts):,} parts and {replay.recording.seconds:.1f} s")
    errors = PageErrors()
    with LiveHost(("albatross", hooks), ("replay", replay)) as host, Forwarder(host.port) as way, running_browser() as browser:
        host.switch(write_script(folder / "f2.pth", *tokens(" a")), steps.ON_THE_CPU).raise_for_status()
        pages = Pages(browser, errors)
        page = pages.open()
        before, after = play(page, way, replay, options.items)
        pages.close()
    print(f"tasks over 50 ms: {len(after.tasks_ms)}, the longest of {after.longest_ms:.0f} ms")
    print(f"heap: {before.heap / 2**20:.1f} MiB before, {after.heap / 2**20:.1f} MiB after")
    print(f"DOM nodes: {before.nodes:,} before, {after.nodes:,} after")
    print(f"connections in use while the batch runs: at most {way.peak} at a time")
    print(f"errors: {errors.found or 'none'}")


if __name__ == "__main__":
    main()
