"""Measure an OpenAI-style server: first-token latency, total tokens, wall time, tokens per second at a number of concurrent requests.

    python -m albatross_plugin.bench.albatross_api_benchmark --port 8000 --concurrency 4 --requests 16 --max-tokens 64
    python -m albatross_plugin.bench.albatross_api_benchmark --port 8000 --concurrency 1,4,16,64,320,960 --plot load.png

Tokens are counted by the server (``usage``) where it does that, else by chunks; the report says which. Exit status 1 if a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albatross_plugin.bench.api_report import as_table, as_text, summarize
from albatross_plugin.bench.http_errors import said
from albatross_plugin.bench.load_plot import check_target, draw_load
from albatross_plugin.bench.openai_client import Endpoint, Generation, HttpError, allow_files, call, generate
from albatross_plugin.bench.progress import Progress

CHAT = "/v1/chat/completions"
# Members that some servers refuse; one that is named in such a refusal is left out from then on.
OPTIONAL = ("stream_options", "ignore_eos", "stop")
PROMPT = "Tell a long story about an albatross that follows a ship."
# Where --requests is not given, this many for each one at a time.
ROUNDS = 4
WATCH_SECONDS = 0.25
# Beside one connection a request: what Python and the system keep open themselves.
SPARE_FILES = 64


@dataclass(frozen=True)
class Load:
    """What is sent: ``requests`` completions, ``concurrency`` of them at a time."""

    concurrency: int = 4
    requests: int = 16
    max_tokens: int = 64
    timeout: float = 300
    stream: bool = True
    no_stop: bool = False
    prompt: str = PROMPT
    model: str = "rwkv"

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.max_tokens,
            "stream": self.stream,
        }
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.no_stop:
            body |= {"stop": None, "ignore_eos": True}
        return body


async def wait_reachable(endpoint: Endpoint, retries: int, delay: float) -> str:
    """Ask for the model list until the server answers; its first model's name. Raises HttpError when it never does."""
    for left in range(max(retries, 0), -1, -1):
        try:
            reply = await call(endpoint, "GET", "/v1/models")
            data = reply.json().get("data") if reply.status == 200 else None
            return str(data[0]["id"]) if data else "rwkv"
        except (HttpError, asyncio.TimeoutError) as error:
            if not left:
                raise HttpError(str(error) or "no answer in time") from error
            await asyncio.sleep(delay)
        except (ValueError, KeyError, AttributeError, TypeError):
            return "rwkv"
    raise AssertionError("unreachable")


async def agreed_body(endpoint: Endpoint, load: Load) -> dict[str, Any]:
    """The body without the optional members that this server refuses. Sends one-token requests to find out.

    Raises HttpError when nothing comes for a reason that every request would meet: no key, no such path, no model.
    """
    body = load.body()
    for _ in range(len(OPTIONAL) + 1):
        limit = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
        trial = await generate(endpoint, CHAT, {**body, limit: 1}, load.timeout)
        if trial.status in (400, 422):
            # Newer servers of OpenAI's own know the limit by its newer name only.
            if limit == "max_tokens" and "max_completion_tokens" in (trial.error or ""):
                body["max_completion_tokens"] = body.pop("max_tokens")
                continue
            refused = [name for name in OPTIONAL if name in body and name in (trial.error or "")]
            if refused:
                for name in refused:
                    del body[name]
                continue
        if trial.error and trial.status != 429 and not trial.chunks:
            raise HttpError(trial.error)
        break
    return body


async def run_load(
    endpoint: Endpoint, load: Load, body: dict[str, Any], progress: Progress | None = None
) -> tuple[list[Generation], float]:
    """All generations, and the seconds from the first start to the last end."""
    numbers = iter(range(load.requests))
    begun: list[Generation] = []
    done: list[Generation] = []

    async def client() -> None:
        for _ in numbers:
            begun.append(Generation())
            done.append(await generate(endpoint, CHAT, body, load.timeout, into=begun[-1]))

    def tell() -> None:
        if progress is None:
            return
        chunks, seconds = sum(each.chunks for each in begun), time.perf_counter() - started
        failed = sum(not each.ok for each in done)
        rate = f"{chunks / seconds if seconds else 0:,.0f} chunks/s, {len(begun) - len(done)} running"
        progress.show(len(done), rate + (f", {failed} failed" if failed else ""))

    async def watch() -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            tell()

    started = time.perf_counter()
    watcher = asyncio.create_task(watch())
    try:
        await asyncio.gather(*(client() for _ in range(min(load.concurrency, load.requests))))
        wall = time.perf_counter() - started
        tell()
    finally:
        watcher.cancel()
    return done, wall


async def read_profile(endpoint: Endpoint) -> dict[str, Any]:
    """Raises HttpError where the server has none."""
    reply = await call(endpoint, "GET", "/albatross/profile")
    if reply.status != 200:
        raise HttpError(f"--profile: status {reply.status} from /albatross/profile: {said({}, reply.body)}")
    return dict(reply.json())


async def measure(endpoint: Endpoint, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A report for each number of concurrent requests."""
    listed = await wait_reachable(endpoint, options.connect_retries, options.connect_retry_delay)
    if options.profile:
        await read_profile(endpoint)
    reports = []
    body: dict[str, Any] | None = None
    for concurrency in options.concurrency:
        load = Load(
            concurrency=concurrency,
            requests=options.requests or ROUNDS * concurrency,
            max_tokens=options.max_tokens,
            timeout=options.timeout,
            stream=not options.non_stream,
            no_stop=options.no_stop,
            prompt=options.prompt,
            model=options.model or listed,
        )
        body = body or await agreed_body(endpoint, load)
        if options.profile:
            await call(endpoint, "POST", "/albatross/profile/reset")
        with Progress(f"concurrency {concurrency}", load.requests, quiet=options.quiet) as progress:
            done, wall = await run_load(endpoint, load, body, progress)
        at_once = min(concurrency, load.requests)
        report = summarize(done, wall, concurrency=at_once, max_tokens=load.max_tokens, stream=load.stream)
        if options.profile:
            report["profile"] = await read_profile(endpoint)
        reports.append(report)
    return reports


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="albatross_api_benchmark", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the server's address (default: %(default)s)")
    add("--port", type=int, default=8000, help="its port (default: %(default)s)")
    add("--base-url", help="its whole base URL instead, with or without /v1")
    add("--api-key", help="sent as a bearer token")
    add("--model", help="the model's name (default: the first that the server lists)")
    add(
        "--concurrency",
        type=_counts,
        default=[4],
        help="requests at a time; several, as in 1,4,16, are run one after the other (default: 4)",
    )
    add("--requests", type=_count, help=f"requests in all, for each concurrency (default: {ROUNDS} times the concurrency)")
    add("--max-tokens", type=_count, default=64, help="most tokens of an answer (default: %(default)s)")
    add("--timeout", type=float, default=300, help="seconds for one request (default: %(default)s)")
    add("--connect-retries", type=int, default=0, help="further tries to reach the server (default: %(default)s)")
    add("--connect-retry-delay", type=float, default=1.0, help="seconds between them (default: %(default)s)")
    add("--non-stream", action="store_true", help="ask for whole answers")
    add("--no-stop", action="store_true", help="no stop texts and no end of text, where the server allows it: full-length answers")
    add("--profile", action="store_true", help="read /albatross/profile too; the server needs ALBATROSS_PROFILE=1")
    add("--prompt", default=PROMPT, help="the user message (default: a line about an albatross)")
    add("--json", nargs="?", const="-", metavar="FILE", help="the report as JSON, printed or written to FILE; of several, a list")
    add("--plot", type=Path, metavar="FILE.png", help="draw throughput and latency over the concurrency; needs matplotlib (extra bench)")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def write(reports: list[dict[str, Any]], options: argparse.Namespace, address: str) -> None:
    """Raises OSError for a file that cannot be written."""
    as_json = json.dumps(reports[0] if len(reports) == 1 else reports, indent=2, ensure_ascii=False) + "\n"
    if options.json == "-":
        sys.stdout.write(as_json)
    else:
        sys.stdout.write((as_text(reports[0]) if len(reports) == 1 else as_table(reports)) + "\n")
        if options.json:
            Path(options.json).write_text(as_json, encoding="utf-8")
    if options.plot:
        draw_load(reports, options.plot, f"{address}, answers of up to {options.max_tokens} tokens")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        endpoint = Endpoint.parse(options.base_url or f"http://{options.host}:{options.port}", options.api_key)
        if options.plot:
            check_target(options.plot)
        allow_files(max(options.concurrency) + SPARE_FILES)
        reports = asyncio.run(measure(endpoint, options))
        write(reports, options, f"{endpoint.host}:{endpoint.port}{endpoint.prefix}")
    except ImportError as error:
        sys.stderr.write(f"{error}: pip install albatross-plugin[bench] brings what --plot needs\n")
        return 1
    except (HttpError, asyncio.TimeoutError, OSError, ValueError) as error:
        sys.stderr.write(f"{error or 'no answer in time'}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped before the end; nothing was measured to the end\n")
        return 130
    return 1 if any(report["failures"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
