"""``python -m host_stub``: start the server."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from host_stub.plugins import Plugins

# Two OpenMP threads that spin while they wait take the cores from each other; this must stand before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

GRACEFUL_SECONDS = 5


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m host_stub", description="A small runner that serves RWKV models and hooks plugins in.")
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port, 0 for a free one (default: %(default)s)")
    add("--backlog", type=int, default=2048, help="connections that may wait to be accepted (default: %(default)s)")
    add("--timeout-keep-alive", type=int, default=120, help="seconds until an idle connection is closed (default: %(default)s)")
    add("--no-access-log", action="store_true", help="no log line per request")
    add("--api-key", default=os.environ.get("HOST_STUB_API_KEY"), help="key that clients send as a bearer token")
    add("--allow-host", action="append", default=[], metavar="NAME", help="another name of this server (may be repeated)")
    add("--allow-origin", action="append", default=[], metavar="ORIGIN", help="a web page's origin that may call (may be repeated)")
    add("--model", default="", help="model file to load before the first request")
    add("--strategy", default="", help="its strategy, for example 'albatross workers=1 batch=32' or 'cpu fp32'")
    add("--tokenizer", default="", help="its vocabulary file")
    add("--deploy", action="store_true", help="close /switch-model and /exit once the model is loaded")
    return parser.parse_args(arguments)


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A bound socket. Raises OSError with the address when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(backlog)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound


def main(arguments: Sequence[str] | None = None, plugins: Plugins | None = None) -> int:
    """Serve until told to stop; the exit status. ``plugins``: those already loaded (default: every entry point that is installed)."""
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from host_stub.app import create_app
    from host_stub.guard import Rules
    from host_stub.server import Server, end_process, raise_file_limit, server_config

    raise_file_limit()
    preload = None
    if options.model:
        preload = {"model": options.model, "strategy": options.strategy, "tokenizer": options.tokenizer, "deploy": options.deploy}
    try:
        bound = listen(options.host, options.port, options.backlog)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    rules = Rules.of([options.host, *options.allow_host], options.allow_origin, options.api_key)
    app = create_app(rules=rules, plugins=plugins, preload=preload)
    config = server_config(
        app,
        backlog=options.backlog,
        timeout_keep_alive=options.timeout_keep_alive,
        access_log=not options.no_access_log,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
        log_config=None,
    )
    server = Server(config, app.state.host)
    host, port = bound.getsockname()[:2]
    sys.stdout.write(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}\n")
    sys.stdout.flush()
    try:
        server.run(sockets=[bound])
    except KeyboardInterrupt:
        return end_process(130)
    return end_process(0)


if __name__ == "__main__":
    sys.exit(main())
