"""A launched Runner under what comes at a bad moment: a signal while it answers, and a switch during a switch."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("torch")
for package in ("fastapi", "uvicorn", "httpx"):
    pytest.importorskip(package)

from contract.host_checks import COMPLETIONS, STRATEGY
from contract.models import models_of_this_run
from contract.served import Served, launcher
from runner.lookalikes import put_together

LONG = {"prompt": "Hello", "max_tokens": 20_000, "ignore_eos": True}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_running_answers_and_the_process(tmp_path: Path, number: signal.Signals) -> None:
    with Served(launcher(put_together("new", tmp_path))) as server:
        assert server.switch(models_of_this_run().f1, STRATEGY).json() == "success"
        last: list[str] = []
        whole: list[int] = []
        begun = threading.Barrier(3, timeout=30)

        def read() -> None:
            with httpx.stream("POST", server.url + COMPLETIONS, json={**LONG, "stream": True}, timeout=60) as response:
                lines = (line for line in response.iter_lines() if line.startswith("data: "))
                next(lines)
                begun.wait()
                last.append([*lines][-1])

        readers = [threading.Thread(target=read) for _ in range(2)]
        readers.append(threading.Thread(target=lambda: whole.append(server.post(COMPLETIONS, LONG).status_code)))
        for reader in readers:
            reader.start()
        begun.wait()
        wait_for_running(server, 3)
        server.process.send_signal(number)
        server.process.wait(8)
        for reader in readers:
            reader.join(5)
    assert len(last) == 2 and all("error" in json.loads(line.removeprefix("data: ")) for line in last), last
    assert whole and whole[0] >= 500, whole


def test_of_two_switches_at_once_one_is_carried_out(tmp_path: Path) -> None:
    main = put_together("new", tmp_path)
    switching = main.parent / "routes" / "switching.py"
    # Long enough after the look at the status for the other one to look there too.
    line = "    global_var.set(global_var.Model, None)\n"
    switching.write_text(switching.read_text().replace(line, "    __import__('time').sleep(1)\n" + line))
    with Served(launcher(main)) as server:
        said: list[int] = []
        body = (models_of_this_run().f1, STRATEGY)
        switches = [threading.Thread(target=lambda: said.append(server.switch(*body).status_code)) for _ in range(2)]
        for each in switches:
            each.start()
        for each in switches:
            each.join(30)
        assert sorted(said) == [200, 304]
        assert server.client.get("/status").json()["albatross"]["phase"] == "ready"
        assert server.switch("", STRATEGY).json() == "success", "the next one is let through"


def wait_for_running(server: Served, count: int) -> None:
    deadline = time.monotonic() + 10
    while (running := server.client.get("/status").json()["albatross"]["slots"]["active"]) != count:
        assert time.monotonic() < deadline, running
        time.sleep(0.02)
