"""A plugin that answers nonsense: one line in the log for each answer, and nothing of the other plugins is lost."""

from __future__ import annotations

import logging
import math

import pluggy
import pytest
from fastapi import APIRouter
from host.live import LiveHost
from host.word_plugin import WordPlugin

from host_stub.models import AbstractRWKV
from host_stub.plugins import Plugins

hookimpl = pluggy.HookimplMarker("rwkv_runner")


class Nonsense:
    """Every answer is given by a keyword; hooks without one answer nothing."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    @hookimpl
    def rwkv_runner_strategies(self) -> object:
        return self.answers.get("strategies")

    @hookimpl
    def rwkv_runner_device_modes(self) -> object:
        return self.answers.get("device_modes")

    @hookimpl
    def rwkv_runner_status(self) -> object:
        return self.answers.get("status")

    @hookimpl
    def rwkv_runner_model_types(self) -> object:
        return self.answers.get("model_types")

    @hookimpl
    def rwkv_runner_routers(self) -> object:
        return self.answers.get("routers")

    @hookimpl
    def rwkv_runner_parse_strategy(self, strategy: str) -> object:
        raise ValueError("what is " + strategy)


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    caplog.clear()
    return lines


def test_a_host_starts_and_serves_beside_nonsense(caplog: pytest.LogCaptureFixture) -> None:
    nonsense = Nonsense(strategies=[1, 2], device_modes=5, status=["no mapping"], model_types=[int, "x"], routers=[object()])
    with LiveHost(("words", WordPlugin()), ("foreign", nonsense)) as host:
        (line,) = _errors(caplog)
        assert line.startswith("plugin foreign failed in rwkv_runner_routers: TypeError: <object") and line.endswith("is no APIRouter")
        status = host.status()
        assert [each["name"] for each in status["strategies"]] == ["words"] and status["words"] == {"loaded": False, "loading": False}
        assert [line.partition(": ")[0] for line in _errors(caplog)] == [
            f"plugin foreign failed in rwkv_runner_{name}" for name in ("status", "strategies", "device_modes")
        ]
        for _ in range(3):
            assert host.status() == status
        assert _errors(caplog) == [], "what clients ask for every second is told once"
        nonsense.answers["status"] = {}
        host.status()
        nonsense.answers["status"] = ["no mapping"]
        host.status()
        assert len(_errors(caplog)) == 1, "and again after it had worked"
        for _ in range(2):
            assert host.switch("a.pth", "words").status_code == 200
            assert [line.partition(": ")[0] for line in _errors(caplog)] == [
                f"plugin foreign failed in rwkv_runner_{name}" for name in ("parse_strategy", "model_types")
            ]
        assert host.client.post("/v1/completions", json={"prompt": "a"}).json()["choices"][0]["text"] == "a "


def test_the_hosts_own_members_of_status_are_its_own() -> None:
    own = {"status": "mine", "model": "mine", "strategies": 7, "deploy": "mine", "pid": 1, "device_modes": 0, "device_name": "mine"}
    with LiveHost(("words", WordPlugin()), ("foreign", Nonsense(status={**own, "foreign": "here"}))) as host:
        status = host.status()
    assert status["foreign"] == "here" and status["status"] == 0 and status["deploy"] is False
    assert [each["name"] for each in status["strategies"]] == ["words"] and "mine" not in status.values()


@pytest.mark.parametrize("value", [object(), math.nan, "\ud800", {1, 2}], ids=["object", "nan", "surrogate", "set"])
def test_what_cannot_be_written_as_json_is_left_out(value: object, caplog: pytest.LogCaptureFixture) -> None:
    plugins = Plugins()
    plugins.register(WordPlugin(), "words")
    plugins.register(Nonsense(status={"foreign": value}, strategies=[{"name": value}]), "foreign")
    assert plugins.status(None) == {"words": {"loaded": False, "loading": False}}
    assert [each["name"] for each in plugins.strategies()] == ["words"]
    assert len(_errors(caplog)) == 2


def test_wrong_model_types_leave_the_others_in_place(caplog: pytest.LogCaptureFixture) -> None:
    plugins = Plugins()
    plugins.register(WordPlugin(), "words")
    plugins.register(Nonsense(model_types=[Nonsense, "x"]), "foreign")
    plugins.register_model_types()
    assert "plugin foreign failed in rwkv_runner_model_types: TypeError: 'x' is no class" in _errors(caplog)
    assert not issubclass(Nonsense, AbstractRWKV)


def test_a_router_that_cannot_be_taken_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    router = APIRouter()
    router.add_api_route("", lambda: 0)
    with LiveHost(("words", WordPlugin()), ("foreign", Nonsense(routers=[router]))) as host:
        (line,) = _errors(caplog)
        assert line.startswith("a plugin's router was not taken: ")
        assert host.client.get("/models").json() == {"from": "plugin"}


def test_a_plugin_says_what_is_wrong_with_a_strategy_that_it_offers(caplog: pytest.LogCaptureFixture) -> None:
    plugins = Plugins()
    plugins.register(WordPlugin(), "words")
    plugins.register(Nonsense(strategies=[{"name": "Theirs", "aliases": ["its"]}]), "foreign")
    for strategy in ("theirs 3", "ITS"):
        with pytest.raises(ValueError, match=f"what is {strategy}"):
            plugins.parse(strategy)
    assert plugins.parse("words") is not None
    for strategy in ("cpu fp32", "", " "):
        assert plugins.parse(strategy) is None
    assert [line.partition(": ")[0] for line in _errors(caplog)] == ["plugin foreign failed in rwkv_runner_parse_strategy"] * 4
