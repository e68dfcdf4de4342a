"""Smoke check against a running host: load a model with the albatross strategy, ask once whole and once streamed.

    python -m host_stub --port 8000                                  # or: python -m albatross_plugin.runner main.py --port 8000
    python tests/manual_albatross_smoke.py --model models/YOUR_RWKV7_MODEL.pth --port 8000
    python tests/manual_albatross_smoke.py --base-url http://127.0.0.1:8000/v1        # what is served there, without a switch

Prints the status codes and the first text. Exit status 0 if all calls gave 200 and both answers had text. The Python that runs it
needs albatross-plugin installed, and nothing else. pytest does not collect this file.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

try:
    from albatross_plugin.bench.albatross_api_benchmark import CHAT, wait_reachable
    from albatross_plugin.bench.http_errors import refusal
    from albatross_plugin.bench.openai_client import Endpoint, Generation, HttpError, call, generate
except ImportError as error:
    sys.exit(f"{error}: run this with the Python that albatross-plugin is installed in, or install it: pip install albatross-plugin")

QUESTION = "Say hello in one short sentence."
LOADING = 304
WAIT_SECONDS = 0.5


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", help="the .pth file, as the host sees it; left out: no /switch-model, what is served is asked")
    add("--host", default="127.0.0.1", help="the server's address (default: %(default)s)")
    add("--port", type=int, default=8000, help="its port (default: %(default)s)")
    add("--base-url", help="its whole base URL instead, with or without /v1")
    add("--api-key", help="sent as a bearer token")
    add("--workers", type=int, default=1, help="put into the strategy (default: %(default)s)")
    add("--batch", type=int, default=16, help="put into the strategy (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), help="put into the strategy (default: left out, which means cuda)")
    add("--max-tokens", type=int, default=32, help="most tokens of an answer (default: %(default)s)")
    add("--timeout", type=float, default=300, help="seconds for each call (default: %(default)s)")
    return parser.parse_args(arguments)


def strategy(options: argparse.Namespace) -> str:
    device = f" device={options.device}" if options.device else ""
    return f"albatross workers={options.workers} batch={options.batch}{device}"


async def switch(endpoint: Endpoint, options: argparse.Namespace) -> bool:
    """Load the model; while another load runs, ask again. Raises HttpError, TimeoutError."""
    body = {"model": options.model, "strategy": strategy(options)}
    began = time.monotonic()
    while True:
        reply = await call(endpoint, "POST", "/switch-model", body, options.timeout)
        print(f"/switch-model {body['strategy']!r}: {reply.status}")
        if reply.status != LOADING:
            break
        if time.monotonic() - began > options.timeout:
            print("  another model is still being loaded")
            return False
        await asyncio.sleep(WAIT_SECONDS)
    if reply.status == 200:
        return True
    print(f"  {refusal(reply.status, {}, reply.body, '/switch-model')}")
    if reply.status == 403:
        print("  in deploy mode the model is fixed: leave out --model to ask the one that is served")
    return False


async def ask(endpoint: Endpoint, body: dict[str, Any], timeout: float) -> bool:
    """One chat, streamed if ``body`` says so. True if it came to its end in order and had text."""
    answer = Generation()
    await generate(endpoint, CHAT, body, timeout, into=answer)
    print(f"{CHAT}{' (stream)' if body['stream'] else ''}: {answer.status or 'no answer'}")
    if answer.texts and body["stream"]:
        print(f"  first text: {answer.texts[0]!r} after {answer.first_latency:.3f} s, {answer.chunks} pieces in all")
    if answer.error:
        print(f"  {answer.error}")
    elif not answer.texts:
        print(f"  no text at all, finish_reason: {answer.finish_reason}")
    elif body["stream"]:
        print(f"  ended with [DONE], finish_reason: {answer.finish_reason}")
    else:
        print(f"  text: {answer.text!r}, finish_reason: {answer.finish_reason}, {answer.tokens} tokens in {answer.latency:.3f} s")
    return answer.ok and bool(answer.texts)


async def check(endpoint: Endpoint, options: argparse.Namespace) -> bool:
    name = await wait_reachable(endpoint, 0, 0)
    if options.model and not await switch(endpoint, options):
        return False
    if not options.model:
        print(f"/switch-model: left out; asking {name!r}")
    body = {"model": name, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": options.max_tokens}
    whole = await ask(endpoint, {**body, "stream": False}, options.timeout)
    return await ask(endpoint, {**body, "stream": True}, options.timeout) and whole


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        endpoint = Endpoint.parse(options.base_url or f"http://{options.host}:{options.port}", options.api_key)
        good = asyncio.run(check(endpoint, options))
    except (HttpError, asyncio.TimeoutError, ValueError) as error:
        print(f"no answer: {error or f'nothing came within {options.timeout:g} s'}")
        good = False
    print("smoke check passed" if good else "smoke check failed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
