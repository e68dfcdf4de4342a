"""Smoke check against a running host: load a model with the albatross strategy, ask once whole and once streamed.

    python -m host_stub --port 8000                                              # or: python main.py --port 8000 (RWKV-Runner)
    python tests/manual_albatross_smoke.py --model models/YOUR_RWKV7_MODEL.pth --port 8000

Prints the status codes and the first text. Exit status 0 if all three calls gave 200 and both answers had text. pytest does not
collect this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import httpx

QUESTION = "Say hello in one short sentence."


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="the .pth file, as the host sees it")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--workers", type=int, default=1)
    add("--batch", type=int, default=16)
    add("--device", choices=("cpu", "cuda"), help="put into the strategy (default: left out, which means cuda)")
    add("--max-tokens", type=int, default=32)
    add("--timeout", type=float, default=300, help="seconds for each call (default: %(default)s)")
    return parser.parse_args(arguments)


def strategy(options: argparse.Namespace) -> str:
    device = f" device={options.device}" if options.device else ""
    return f"albatross workers={options.workers} batch={options.batch}{device}"


def content(choice: dict[str, Any]) -> str:
    part = choice.get("message") or choice.get("delta") or {}
    return part.get("content") or ""


def switch(client: httpx.Client, options: argparse.Namespace) -> bool:
    response = client.post("/switch-model", json={"model": options.model, "strategy": strategy(options)})
    print(f"/switch-model {strategy(options)!r}: {response.status_code}")
    if response.status_code != 200:
        print(f"  {response.text[:1000]}")
    return response.status_code == 200


def ask_whole(client: httpx.Client, body: dict[str, Any]) -> bool:
    response = client.post("/v1/chat/completions", json=body)
    print(f"/v1/chat/completions: {response.status_code}")
    if response.status_code != 200:
        print(f"  {response.text[:1000]}")
        return False
    choice = response.json()["choices"][0]
    print(f"  text: {content(choice)!r}, finish_reason: {choice['finish_reason']}")
    return bool(content(choice))


def ask_stream(client: httpx.Client, body: dict[str, Any]) -> bool:
    """Prints the first piece of text when it comes; true if there was one and the stream had its end marker."""
    first, ended = "", False
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        print(f"/v1/chat/completions (stream): {response.status_code}")
        if response.status_code != 200:
            print(f"  {response.read().decode(errors='replace')[:1000]}")
            return False
        for line in response.iter_lines():
            data = line.removeprefix("data:").strip()
            if not line.startswith("data:"):
                continue
            if data == "[DONE]":
                ended = True
                break
            event = json.loads(data)
            if "error" in event:
                print(f"  error: {event['error']}")
                return False
            text = "".join(content(choice) for choice in event["choices"])
            if text and not first:
                first = text
                print(f"  first text: {first!r}")
    print("  ended with [DONE]" if ended else "  ended without [DONE]")
    return bool(first) and ended


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": options.max_tokens}
    with httpx.Client(base_url=f"http://{options.host}:{options.port}", timeout=options.timeout, trust_env=False) as client:
        try:
            good = switch(client, options) and ask_whole(client, body) and ask_stream(client, body)
        except httpx.HTTPError as error:
            print(f"no answer: {type(error).__name__}: {error}")
            return 1
    print("smoke check passed" if good else "smoke check failed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
