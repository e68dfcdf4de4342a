"""The host in this process: a real uvicorn in a thread, with the plugins that a test brings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from host_stub.app import create_app
from host_stub.guard import Rules
from host_stub.plugins import Plugins
from host_stub.server import Server, server_config
from host_stub.state import HostState

GRACEFUL_SECONDS = 2


class LiveHost:
    """Listens on a free port of the loopback interface. ``plugins``: (name, plugin) pairs to register."""

    def __init__(self, *plugins: tuple[str, object], rules: Rules | None = None, preload: dict[str, Any] | None = None) -> None:
        loaded = Plugins()
        for name, plugin in plugins:
            loaded.register(plugin, name)
        self.app = create_app(plugins=loaded, rules=rules, preload=preload)
        config = server_config(
            self.app, host="127.0.0.1", port=0, log_config=None, access_log=False, timeout_graceful_shutdown=GRACEFUL_SECONDS
        )
        self.server = Server(config, self.app.state.host)
        self._thread = threading.Thread(target=self.server.run, name="live-host")
        self._thread.start()
        wait_for(lambda: self.server.started or not self._thread.is_alive())
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)

    @property
    def state(self) -> HostState:
        host: HostState = self.app.state.host
        return host

    def _leave(self) -> None:
        self.server.leave()

    def switch(self, model: object, strategy: str = "", **more: Any) -> httpx.Response:
        return self.client.post("/switch-model", json={"model": str(model), "strategy": strategy, **more})

    def status(self) -> dict[str, Any]:
        return dict(self.client.get("/status").json())

    def events(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of every event of a stream."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            return [line[len("data: ") :] for line in response.iter_lines() if line]

    def close(self) -> None:
        self.client.close()
        self._leave()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server did not stop"

    def __enter__(self) -> LiveHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_for(condition: Callable[[], object], seconds: float = 15) -> None:
    """Poll until ``condition()`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.01)
