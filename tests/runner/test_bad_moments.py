"""A launched Runner under what comes at a bad moment: a signal while it answers, and a switch during a switch."""

from __future__ import annotations

import http.client
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

from contract.host_checks import BATCHES, COMPLETIONS, STRATEGY
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


def test_a_load_whose_failure_cannot_be_told_leaves_the_next_one_free(tmp_path: Path) -> None:
    main = put_together("new", tmp_path)
    switching = main.parent / "routes" / "switching.py"
    line = "        print(error)\n"
    assert line in switching.read_text()
    switching.write_text(switching.read_text().replace(line, "        raise OSError('the output is gone')\n"))
    with Served(launcher(main)) as server:
        failed = server.switch("missing.pth", STRATEGY)
        assert failed.status_code == 500 and failed.json()["detail"] == "failed to load: OSError: the output is gone"
        assert server.client.get("/status").json()["status"] == 0
        assert server.switch(models_of_this_run().f1, STRATEGY).json() == "success"


def test_paths_that_the_output_or_an_answer_cannot_write(tmp_path: Path) -> None:
    with Served(launcher(put_together("new", tmp_path)), environ={"PYTHONIOENCODING": "cp1252"}) as server:
        failed = server.switch("\u6a21\u578b.pth", STRATEGY)
        assert failed.status_code == 500 and "\u6a21\u578b.pth" in failed.json()["detail"]
        body = json.dumps({"model": "\ud800.pth", "strategy": STRATEGY})
        half = server.client.post("/switch-model", content=body, headers={"Content-Type": "application/json"})
        assert half.status_code == 500 and "\\ud800.pth" in half.json()["detail"]
        assert server.switch(models_of_this_run().f1, STRATEGY).json() == "success"
        assert "\\u6a21\\u578b.pth" in server.text()


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_no_traceback(tmp_path: Path) -> None:
    with Served(launcher(put_together("new", tmp_path))) as server:
        assert server.switch(models_of_this_run().f1, STRATEGY).json() == "success"
        for path in (BATCHES, "/translate/v1/batch-translate"):
            leaving = http.client.HTTPConnection("127.0.0.1", server.client.base_url.port or 80, timeout=10)
            leaving.putrequest("POST", path)
            leaving.putheader("Content-Type", "application/json")
            leaving.putheader("Content-Length", "100")
            leaving.endheaders(b'{"pro')
            leaving.close()
        # What an answer costs comes after what the departures cost.
        for _ in range(10):
            assert server.client.get("/albatross/status").status_code == 200
    assert "Traceback" not in server.text()


def wait_for_running(server: Served, count: int) -> None:
    deadline = time.monotonic() + 10
    while (running := server.client.get("/status").json()["albatross"]["slots"]["active"]) != count:
        assert time.monotonic() < deadline, running
        time.sleep(0.02)
