"""Measure an OpenAI-style server: first-token latency, total tokens, wall time, tokens per second at a number of concurrent requests.

    python -m albatross_plugin.bench.albatross_api_benchmark --port 8000 --concurrency 4 --requests 16 --max-tokens 64

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
from typing import Any

from albatross_plugin.bench.openai_client import Endpoint, Generation, HttpError, call, generate
from albatross_plugin.bench.report import percentile

CHAT = "/v1/chat/completions"
# Members that some servers refuse; one that is named in such a refusal is left out from then on.
OPTIONAL = ("stream_options", "ignore_eos", "stop")
PROMPT = "Tell a long story about an albatross that follows a ship."


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
    """The body without the optional members that this server refuses. Sends one-token requests to find out."""
    body = load.body()
    for _ in OPTIONAL:
        trial = await generate(endpoint, CHAT, {**body, "max_tokens": 1}, load.timeout)
        refused = [name for name in OPTIONAL if name in body and name in (trial.error or "")]
        if trial.status not in (400, 422) or not refused:
            break
        for name in refused:
            del body[name]
    return body


async def run_load(endpoint: Endpoint, load: Load, body: dict[str, Any]) -> tuple[list[Generation], float]:
    """All generations, and the seconds from the first start to the last end."""
    numbers = iter(range(load.requests))
    done: list[Generation] = []

    async def client() -> None:
        for _ in numbers:
            done.append(await generate(endpoint, CHAT, body, load.timeout))

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(min(load.concurrency, load.requests))))
    return done, time.perf_counter() - started


def summarize(load: Load, done: Sequence[Generation], wall: float) -> dict[str, Any]:
    """The report as plain values; seconds and tokens a second. Failed requests count nowhere but in ``failures``."""
    good = [each for each in done if each.ok]
    tokens = sum(each.tokens for each in good)
    report: dict[str, Any] = {
        "requests": len(done),
        "failures": len(done) - len(good),
        "concurrency": min(load.concurrency, load.requests),
        "stream": load.stream,
        "max_tokens": load.max_tokens,
        "total_tokens": tokens,
        "tokens_counted_by": "usage" if good and all(each.usage for each in good) else "chunks",
        "wall_s": round(wall, 4),
        "tokens_per_s": round(tokens / wall, 2) if wall > 0 else 0.0,
        "errors": sorted({each.error for each in done if each.error}),
    }
    if load.stream:
        report["first_token_s"] = spread([each.first_latency for each in good if each.first_latency is not None])
        gaps = [(each.ended - each.first) / (each.tokens - 1) for each in good if each.first is not None and each.tokens > 1]
        report["token_gap_s"] = spread(gaps)
    report["latency_s"] = spread([each.latency for each in good])
    return report


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Least, percentiles 50, 90 and 99, and most."""
    if not values:
        return None
    parts = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values, part), 5) for name, part in parts.items()}


def as_text(report: dict[str, Any]) -> str:
    lines = [
        f"requests:            {report['requests']} ({report['failures']} failed)",
        f"concurrent requests: {report['concurrency']}",
        f"total tokens:        {report['total_tokens']} (counted by {report['tokens_counted_by']})",
        f"wall time:           {report['wall_s']:.3f} s",
        f"tokens/s:            {report['tokens_per_s']:.1f}",
    ]
    names = {"first_token_s": "first token:", "token_gap_s": "between tokens:", "latency_s": "whole answer:"}
    for key, name in names.items():
        if report.get(key):
            lines.append(f"{name:20} " + ", ".join(f"{part} {1e3 * value:.1f} ms" for part, value in report[key].items()))
    lines += [f"error:               {error}" for error in report["errors"]]
    if report.get("profile") is not None:
        lines.append("profile of the server:")
        lines += [f"  {name:20} {value:g}" for name, value in report["profile"].items()]
    return "\n".join(lines)


async def measure(endpoint: Endpoint, options: argparse.Namespace) -> dict[str, Any]:
    model = await wait_reachable(endpoint, options.connect_retries, options.connect_retry_delay)
    load = Load(
        concurrency=options.concurrency,
        requests=options.requests,
        max_tokens=options.max_tokens,
        timeout=options.timeout,
        stream=not options.non_stream,
        no_stop=options.no_stop,
        prompt=options.prompt,
        model=options.model or model,
    )
    body = await agreed_body(endpoint, load)
    if options.profile:
        await call(endpoint, "POST", "/albatross/profile/reset")
    report = summarize(load, *await run_load(endpoint, load, body))
    if options.profile:
        reply = await call(endpoint, "GET", "/albatross/profile")
        report["profile"] = reply.json() if reply.status == 200 else None
    return report


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="albatross_api_benchmark", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the server's address (default: %(default)s)")
    add("--port", type=int, default=8000, help="its port (default: %(default)s)")
    add("--base-url", help="its whole base URL instead, with or without /v1")
    add("--api-key", help="sent as a bearer token")
    add("--model", help="the model's name (default: the first that the server lists)")
    add("--concurrency", type=_count, default=4, help="requests at a time (default: %(default)s)")
    add("--requests", type=_count, default=16, help="requests in all (default: %(default)s)")
    add("--max-tokens", type=_count, default=64, help="most tokens of an answer (default: %(default)s)")
    add("--timeout", type=float, default=300, help="seconds for one request (default: %(default)s)")
    add("--connect-retries", type=int, default=0, help="further tries to reach the server (default: %(default)s)")
    add("--connect-retry-delay", type=float, default=1.0, help="seconds between them (default: %(default)s)")
    add("--non-stream", action="store_true", help="ask for whole answers")
    add("--no-stop", action="store_true", help="no stop texts and no end of text, where the server allows it: full-length answers")
    add("--profile", action="store_true", help="read /albatross/profile too; the server needs ALBATROSS_PROFILE=1")
    add("--prompt", default=PROMPT, help="the user message (default: a line about an albatross)")
    add("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        endpoint = Endpoint.parse(options.base_url or f"http://{options.host}:{options.port}", options.api_key)
        report = asyncio.run(measure(endpoint, options))
    except (HttpError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write((json.dumps(report, indent=2) if options.json else as_text(report)) + "\n")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
