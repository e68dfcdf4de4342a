"""Who may call the routes that plugins bring to a launched Runner."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.served import Served, launcher
from runner.lookalikes import put_together

from albatross_plugin.runner.launch import main
from albatross_plugin.runner.points.sites import refusal

NAMES = frozenset(("runner.example.org",))


@pytest.mark.parametrize(
    ("host", "origin", "code"),
    [
        ("127.0.0.1:8000", None, None),
        ("[::1]:8000", None, None),
        ("192.168.1.7", "http://192.168.1.7", None),
        ("LOCALHOST:8000", "http://localhost:5173", None),
        ("", None, None),
        ("gpu-box:8000", "http://gpu-box:8000", None),
        ("gpu-box.local", None, None),
        ("app.localhost:8000", None, None),
        ("Runner.Example.org.", "https://runner.example.org", None),
        ("127.0.0.1:8000", "https://runner.example.org", None),
        ("127.0.0.1:8000", "chrome-extension://abcdef", None),
        ("evil.example:8000", None, "host_not_allowed"),
        ("evil.example", "http://evil.example", "host_not_allowed"),
        ("runner.example.org.evil.example", None, "host_not_allowed"),
        ("127.0.0.1.evil.example", None, "host_not_allowed"),
        ("127.0.0.1:8000", "http://evil.example", "origin_not_allowed"),
        ("127.0.0.1:8000", "http://gpu-box", "origin_not_allowed"),
        ("gpu-box", "null", "origin_not_allowed"),
        ("127.0.0.1:8000", "http://[evil", "origin_not_allowed"),
        ("[evil", None, "origin_not_allowed"),
    ],
)
def test_sec_3_names_and_pages_that_may_call(host: str, origin: str | None, code: str | None) -> None:
    headers = {name: value for name, value in (("host", host), ("origin", origin)) if value is not None}
    refused = refusal(headers, NAMES)
    assert (refused.code if refused else None) == code
    if code == "host_not_allowed":
        assert refused is not None and "--allow-host" in refused.message


@pytest.mark.parametrize("words", [["--allow-host"], ["--allow-host", "--port", "8000"]])
def test_a_name_that_is_missing_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "--allow-host needs a name" in capsys.readouterr().err


def test_a_name_that_is_allowed_reaches_the_routes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with Served(launcher(put_together("new", tmp_path), "--allow-host", "runner.example.org")) as server:
        for name, status in (("runner.example.org", 200), ("evil.example", 403)):
            assert server.client.get("/albatross/status", headers={"Host": name}).status_code == status
            assert server.client.get("/status", headers={"Host": name}).status_code == 200, "the Runner's own"
