"""``python -m host_stub.demo``: sixteen answers at once from the plugin's engine, and the same sixteen from the locked path.

Makes a small model with random weights, starts this host as a process of its own, lets it load the model with the strategy
``albatross device=cpu batch=16``, streams 16 prompts at once, then does the same with the host's own ``cpu fp32``. Exit
status 0 means: all answers were whole, the plugin's streams overlapped in time, and the ratio of the two rates was printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import httpx

from host_stub.demo_host import HostError, HostProcess
from host_stub.demo_model import DEMO_SHAPE, Shape, cache_folder, cached_checkpoint
from host_stub.demo_streams import PROMPTS, Stream, aggregate_rate, most_at_once, new_streams, run_all
from host_stub.demo_view import LiveView, PlainView, is_terminal, timetable

PLUGIN_STRATEGY = f"albatross device=cpu batch={len(PROMPTS)}"
LOCKED_STRATEGY = "cpu fp32"
POLL_SECONDS = 0.1
LOAD_SECONDS = 300


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m host_stub.demo", description=__doc__, formatter_class=form)
    parser.add_argument("--port", type=int, default=0, help="port of the host (default: a free one)")
    parser.add_argument("--keep", action="store_true", help="leave the host running until Ctrl-C, and print how to call it")
    parser.add_argument("--max-tokens", type=int, default=48, help="length of each answer (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=None, help="folder for the model file (default: this user's cache folder)")
    parser.add_argument("--layers", type=int, default=DEMO_SHAPE.layers, help="layers of the model (default: %(default)s)")
    parser.add_argument("--width", type=int, default=DEMO_SHAPE.width, help="its width, a multiple of 64 (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.max_tokens < 2:
        parser.error("--max-tokens must be at least 2")
    try:
        options.shape = Shape(options.layers, options.width)
    except ValueError as error:
        parser.error(str(error))
    return options


class Demo:
    """One run. ``say`` writes a line at once, so that a pipe shows it in time."""

    def __init__(self, options: argparse.Namespace, out: TextIO) -> None:
        self.options = options
        self.out = out
        self.live = is_terminal(out)
        self.good = False

    def say(self, text: str = "") -> None:
        self.out.write(text + "\n")
        self.out.flush()

    def run(self) -> int:
        folder = self.options.cache or cache_folder()
        shape: Shape = self.options.shape
        self.say(f"1. Model: an RWKV-7 of {shape.layers} layers, {shape.width} wide, vocabulary {shape.vocab}, seeded random weights.")
        model, made = cached_checkpoint(folder, shape)
        self.say(f"   {'made' if made else 'found'} {model} ({model.stat().st_size / 1e6:.0f} MB)")
        self.say("   Random weights have learned nothing: the answers below are gibberish, at the speed of a real model of this size.")
        with HostProcess(self.options.port) as host:
            try:
                return asyncio.run(self._with_host(host, host.wait_listening(), model))
            except HostError as error:
                self.say(f"failed: {error}")
                return 1

    async def _with_host(self, host: HostProcess, url: str, model: Path) -> int:
        limits = httpx.Limits(max_connections=None)
        # A proxy from the environment must not stand between two processes of one machine.
        async with httpx.AsyncClient(base_url=url, timeout=LOAD_SECONDS, trust_env=False, limits=limits) as client:
            await self._show_plugin(client, host, url)
            ours = await self._measure(client, host, model, "3. The plugin's engine", PLUGIN_STRATEGY)
            theirs = await self._measure(client, host, model, "4. The host's own locked path", LOCKED_STRATEGY)
            self.good = self._verdict(ours, theirs)
            if self.options.keep:
                await self._switch(client, host, model, PLUGIN_STRATEGY)
                self.say(examples(url))
                while host.running():
                    await asyncio.sleep(POLL_SECONDS)
            return 0 if self.good else 1

    async def _show_plugin(self, client: httpx.AsyncClient, host: HostProcess, url: str) -> None:
        """Both the host's log and its /status must name the plugin; raises HostError else."""
        status = (await client.get("/status")).json()
        names = [item.get("name") for item in status.get("strategies", [])]
        line = host.plugin_line()
        if line is None or "albatross" not in names:
            raise HostError(f"the host did not find the plugin; is it installed in this environment?\n{host.tail()}")
        self.say(f"2. Host: {url}")
        self.say(f"   its log:     {line}")
        self.say(f"   its /status: strategies on offer: {', '.join(map(str, names))}")

    async def _measure(self, client: httpx.AsyncClient, host: HostProcess, model: Path, title: str, strategy: str) -> list[Stream]:
        self.say(f"{title}: strategy {strategy!r}")
        await self._switch(client, host, model, strategy)
        # The first passes of either path compile and allocate; neither is to pay for that in its figure.
        warm = new_streams(4)[:2]
        await run_all(client, warm)
        streams = new_streams(self.options.max_tokens)
        self.say(f"   {len(streams)} different prompts at once, {self.options.max_tokens} tokens each")
        view = LiveView(streams, self.out) if self.live else PlainView(streams, self.out)
        drawing = asyncio.create_task(view.run())
        try:
            await run_all(client, streams)
        finally:
            drawing.cancel()
            with suppress(asyncio.CancelledError):
                await drawing
        view.finish()
        for text in timetable(streams):
            self.say(text)
        self.say(f"  most streams at one moment: {most_at_once(streams)} of {len(streams)}")
        return streams

    async def _switch(self, client: httpx.AsyncClient, host: HostProcess, model: Path, strategy: str) -> None:
        """Load the model and show how far it is. Raises HostError with the host's reason."""
        switching = asyncio.create_task(client.post("/switch-model", json={"model": str(model), "strategy": strategy}))
        shown = ""
        while not switching.done():
            await asyncio.wait([switching], timeout=POLL_SECONDS)
            with suppress(httpx.HTTPError):
                text = load_progress((await client.get("/status", timeout=5)).json())
                if text and text != shown:
                    shown = text
                    self.say(f"   loading: {text}")
        try:
            response = await switching
        except httpx.HTTPError as error:
            raise HostError(f"the host went away while loading: {error}\n{host.tail()}") from error
        if response.status_code != 200:
            raise HostError(f"loading with {strategy!r} was answered with {response.status_code}: {response.text[:500]}\n{host.tail()}")
        self.say("   loaded")

    def _verdict(self, ours: list[Stream], theirs: list[Stream]) -> bool:
        fast, slow = aggregate_rate(ours), aggregate_rate(theirs)
        self.say("5. Result")
        self.say(f"   {PLUGIN_STRATEGY:32} {fast:8.1f} tokens/s, at most {most_at_once(ours)} streams at one moment")
        self.say(f"   {LOCKED_STRATEGY:32} {slow:8.1f} tokens/s, at most {most_at_once(theirs)} at one moment")
        broken = [stream for stream in [*ours, *theirs] if not stream.complete]
        for stream in broken:
            reason = stream.error or stream.finish_reason
            self.say(f"   request {stream.number} is not whole: {reason}, {stream.tokens} of {stream.limit} tokens")
        overlapped = most_at_once(ours) == len(ours)
        if not overlapped:
            self.say("   the plugin's streams did not all overlap")
        if broken or slow <= 0:
            return False
        self.say(f"   ratio: {fast / slow:.2f}")
        return overlapped


def load_progress(status: dict[str, Any]) -> str:
    """How far a load is, from the plugin's part of /status; "" when it says nothing."""
    part = status.get("albatross")
    if not isinstance(part, dict) or not part.get("total_bytes"):
        return ""
    loaded, total = part.get("loaded_bytes") or 0, part["total_bytes"]
    # Steps of a tenth, so that a log does not fill with near-equal lines.
    return f"{part.get('phase', '')} {10 * (10 * loaded // total)}% of {total / 1e6:.0f} MB"


def examples(url: str) -> str:
    """How to call the running host."""
    body = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "stream": true}'
    quoted = '"' + body.replace('"', '\\"') + '"' if os.name == "nt" else f"'{body}'"
    return f"""
The host keeps running at {url} until Ctrl-C. Try it from another terminal:

    curl -N {url}/v1/chat/completions -H "Content-Type: application/json" -d {quoted}

or from Python, with the openai package:

    from openai import OpenAI

    client = OpenAI(base_url="{url}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="rwkv", messages=[{{"role": "user", "content": "Hello"}}], max_tokens=40, stream=True
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    # A console of an old code page cannot show every character of a World model's text; that must not end the demo.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    # An exception, so that the child is ended on this way out too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    demo = Demo(options, sys.stdout)
    try:
        return demo.run()
    except KeyboardInterrupt:
        sys.stdout.write("\nstopped\n")
        # With --keep this is the way out of a demo that has shown all there is.
        return 0 if demo.good else 130


if __name__ == "__main__":
    sys.exit(main())
