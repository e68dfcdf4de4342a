"""The page in Firefox and in WebKit, Safari's engine, with a real host and engine: ``python tests/ui/other_browsers.py [firefox] [webkit]``.

Debian's packages ``firefox-esr``, ``webkit2gtk-driver`` and ``xvfb``. Playwright drives only browsers of its own making where they are not
Chromium, so the protocols are spoken here: Marionette, which Firefox brings along, and WebDriver over HTTP.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "tests")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import httpx
from cases.scripts import world, write_script
from host.live import LiveHost, wait_for

from albatross_plugin import hooks

TEXT = " the quick brown fox jumps over a lazy dog.\n你好，世界🙂"
MINI_BROWSER = "/usr/lib/*/webkit2gtk-4.*/MiniBrowser"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
WATCH = """window.faults = [];
addEventListener("error", (event) => faults.push(String(event.message)));
addEventListener("unhandledrejection", (event) => faults.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => faults.push(event.violatedDirective + " " + event.blockedURI));"""
COUNTS = """return Object.fromEntries([...document.querySelectorAll(".batch-filter label")].map((each) =>
  [each.dataset.state, Number(each.querySelector(".segment-count").textContent.replaceAll(",", ""))]).filter(([, count]) => count));"""
IN_SIGHT = """return [...document.querySelectorAll("#batch .cell:not([hidden])")].map((cell) =>
  [cell.querySelector(".cell-id").textContent, cell.dataset.state, cell.querySelector(".cell-text").textContent]);"""
READY = "return !document.querySelector('#batch .batch-actions .primary').disabled"
REACHED = "const bar = document.querySelector('#batch progress'); return bar.max === {all} && bar.value >= {some}"


class Remote(ABC):
    """A browser that is driven from here. Raises RuntimeError for what it refuses."""

    @abstractmethod
    def ask(self, path: str, command: str, **values: Any) -> Any:
        """One command: WebDriver's path below the session, Marionette's name."""

    def open(self, url: str) -> None:
        self.ask("url", "WebDriver:Navigate", url=url)
        self._watch()

    def reload(self) -> None:
        self.ask("refresh", "WebDriver:Refresh")
        self._watch()

    def run(self, script: str) -> Any:
        return self.ask("execute/sync", "WebDriver:ExecuteScript", script=script, args=[])

    def click(self, selector: str) -> None:
        element = self._find(selector)
        self.ask(f"element/{element}/click", "WebDriver:ElementClick", id=element)

    def fill(self, selector: str, text: str) -> None:
        element = self._find(selector)
        self.ask(f"element/{element}/clear", "WebDriver:ElementClear", id=element)
        self.ask(f"element/{element}/value", "WebDriver:ElementSendKeys", id=element, text=text)

    def point_at(self, selector: str) -> None:
        move = {"type": "pointerMove", "duration": 0, "origin": {ELEMENT: self._find(selector)}, "x": 0, "y": 0}
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self.ask("actions", "WebDriver:PerformActions", actions=[mouse])

    def wait(self, script: str, seconds: float = 60) -> Any:
        """What ``script`` gives as soon as it is true."""
        found: list[Any] = []
        wait_for(lambda: found.append(self.run(script)) or found[-1], seconds)
        return found[-1]

    def _watch(self) -> None:
        # WebKit is back before the page is.
        self.wait("return document.readyState === 'complete' && document.querySelector('[role=tab]') !== null")
        self.run(WATCH)

    def _find(self, selector: str) -> str:
        return str(self.ask("element", "WebDriver:FindElement", using="css selector", value=selector)[ELEMENT])


class Firefox(Remote):
    """Messages are ``LENGTH:[type, number, error or command, value]`` over one connection."""

    def __init__(self, port: int) -> None:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.settimeout(120)
        self._connection, self._file = connection, connection.makefile("rb")
        self._numbers = itertools.count(1)
        self._read()
        self.name = "Firefox " + self._say("WebDriver:NewSession", {"capabilities": {}})["capabilities"]["browserVersion"]

    def ask(self, path: str, command: str, **values: Any) -> Any:
        answer = self._say(command, values)
        return answer["value"] if isinstance(answer, dict) and set(answer) == {"value"} else answer

    def _say(self, command: str, values: dict[str, Any]) -> Any:
        message = json.dumps([0, next(self._numbers), command, values]).encode()
        self._connection.sendall(b"%d:%b" % (len(message), message))
        _, _, error, value = self._read()
        if error is not None:
            raise RuntimeError(f"{command}: {error['message']}")
        return value

    def _read(self) -> Any:
        digits = b""
        while (byte := self._file.read(1)) != b":":
            if not byte:
                raise RuntimeError("Firefox has closed the connection")
            digits += byte
        return json.loads(self._file.read(int(digits)))


class WebKit(Remote):
    def __init__(self, port: int, browser: str) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        wanted = {"webkitgtk:browserOptions": {"binary": browser, "args": ["--automation"]}}
        session = self._post("session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"session/{session['sessionId']}"
        self.name = "WebKitGTK " + session["capabilities"]["browserVersion"]

    def ask(self, path: str, command: str, **values: Any) -> Any:
        return self._post(f"{self._session}/{path}", {name: value for name, value in values.items() if name != "id"})

    def _post(self, path: str, values: dict[str, Any]) -> Any:
        answer = self._client.post(path, json=values)
        value = answer.json()["value"]
        if answer.is_error:
            raise RuntimeError(f"{path}: {value['error']} {value['message']}")
        return value

    def close(self) -> None:
        self._client.delete(self._session)
        self._client.close()


@contextmanager
def process(*words: str, output: int = subprocess.DEVNULL, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(words, stdout=output, stderr=subprocess.DEVNULL, env={**os.environ, **environment}) as running:
        try:
            yield running
        finally:
            running.terminate()


@contextmanager
def firefox() -> Iterator[Remote]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        port = free_port()
        Path(home, "user.js").write_text(f'user_pref("marionette.port", {port});\n')
        with process(found("firefox-esr", "firefox"), "--headless", "--marionette", "--profile", home, HOME=home):
            listening(port)
            yield Firefox(port)


@contextmanager
def webkit() -> Iterator[Remote]:
    """It has no mode without a screen."""
    browser = next((str(path) for path in Path("/").glob(MINI_BROWSER.removeprefix("/"))), None)
    if browser is None:
        sys.exit("MiniBrowser is not installed; Debian's package is webkit2gtk-driver")
    driver, screen, port = found("WebKitWebDriver"), found("Xvfb"), free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, ExitStack() as running:
        shown = running.enter_context(process(screen, "-displayfd", "1", "-screen", "0", "1400x1000x24", output=subprocess.PIPE))
        assert shown.stdout is not None
        # It chooses a free one, and says which when it is ready.
        number = ":" + shown.stdout.readline().decode().strip()
        # Containers lack what its sandbox needs.
        settings = {"DISPLAY": number, "HOME": home, "WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS": "1"}
        running.enter_context(process(driver, f"--port={port}", **settings))
        listening(port)
        remote = WebKit(port, browser)
        running.callback(remote.close)
        yield remote


def found(*names: str) -> str:
    path = next((path for name in names if (path := shutil.which(name))), None)
    return path or sys.exit(f"{names[0]} is not installed")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listening(port: int) -> None:
    def there() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            return False
        return True

    wait_for(there, 60)


def start(remote: Remote, count: int) -> None:
    remote.click("#tab-batch")
    remote.fill("#batch-prompt", "!")
    remote.fill("#batch-count", str(count))
    remote.click("#batch .batch-actions .primary")


def whole(host: LiveHost, remote: Remote, model: Path) -> None:
    """Load, chat, a batch to its end, one stopped, one cut by a reload, a cell enlarged."""
    remote.open(host.url + "/albatross/ui")
    remote.fill("#model-path", str(model))
    remote.run("""const mode = document.querySelector("#device-mode"); mode.selectedIndex = mode.options.length - 1;
      for (const kind of ["input", "change"]) mode.dispatchEvent(new Event(kind, { bubbles: true }));""")
    remote.fill("#strategy-other", "albatross device=cpu batch=32")
    remote.click("#load-button")
    assert "script" in remote.wait("return document.querySelector('#load-outcome .ok')?.textContent")

    remote.click("#tab-chat")
    remote.fill("#chat-input", "hello")
    remote.click("#chat .chat-buttons .primary")
    remote.wait("return [...document.querySelectorAll('.chat-model')].at(-1)?.dataset.end === 'done'")
    assert "quick brown fox" in remote.run("return [...document.querySelectorAll('.chat-text')].at(-1).textContent")

    start(remote, 200)
    remote.wait(REACHED.format(all=200, some=200))
    remote.wait(READY)
    assert remote.run(COUNTS) == {"all": 200, "done": 200}
    remote.run("document.querySelector('#batch .grid').scrollTop = 1e9")
    seen = remote.wait(f"const seen = (() => {{ {IN_SIGHT} }})(); return seen.some(([id]) => id === '#199') && seen")
    assert {(state, text) for _, state, text in seen} == {("done", TEXT)}

    start(remote, 900)
    remote.wait(REACHED.format(all=900, some=100))
    remote.click("#batch .batch-actions .danger")
    remote.wait(READY)
    counts = remote.run(COUNTS)
    assert counts["aborted"] > 0 and counts["done"] + counts["aborted"] == 900, counts

    start(remote, 1000)
    remote.wait(REACHED.format(all=1000, some=1))
    faults = remote.run("return faults")
    remote.reload()
    wait_for(lambda: host.client.get("/albatross/status").json()["batches"]["running"] == 0)
    remote.wait("return document.querySelector('#batch .batch-results .notice')?.textContent")
    counts = remote.run(COUNTS)
    assert counts["error"] > 0 and counts.get("done", 0) + counts["error"] == 1000, counts

    remote.point_at("#batch .cell")
    remote.wait("return document.querySelector('#batch .cell .cell-tools')?.checkVisibility()")
    faults += remote.run("return faults")
    assert faults == [], faults


def main() -> None:
    kinds = {"firefox": firefox, "webkit": webkit}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("browsers", nargs="*", choices=[*kinds, []], metavar="firefox|webkit")
    for name in parser.parse_args().browsers or kinds:
        with tempfile.TemporaryDirectory() as folder, LiveHost(("albatross", hooks)) as host, kinds[name]() as remote:
            model = write_script(Path(folder) / "script.pth", *world().encode(TEXT))
            began = time.monotonic()
            whole(host, remote, model)
            print(f"{remote.name}: everything as it should be, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
