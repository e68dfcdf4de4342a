from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from host.live import LiveHost, wait_for
from host.word_plugin import WordPlugin


def reason(host: LiveHost, model: object, strategy: str) -> str:
    """The text of a load that must fail, in both forms, and leave the host Offline."""
    answer = host.switch(model, strategy)
    assert answer.status_code == 500
    data = answer.json()
    assert data["detail"] == data["error"]["message"] and data["error"]["code"] == "model_load_failed"
    assert host.status()["status"] == 0
    assert data["detail"].startswith("failed to load: ")
    return str(data["detail"][len("failed to load: ") :])


def test_req_17_the_strategy_chooses_the_plugin(host: LiveHost, plugin: WordPlugin) -> None:
    assert host.status()["status"] == 0
    answer = host.switch("any.pth", "words fast")
    assert (answer.status_code, answer.json()) == (200, "success")
    status = host.status()
    assert (status["status"], status["model"], status["words"]["loaded"]) == (3, "words", True)
    assert status["pid"] > 0 and status["device_name"] and status["strategies"][0]["name"] == "words"


def test_the_empty_model_unloads_through_the_hook(loaded: LiveHost, plugin: WordPlugin) -> None:
    answer = loaded.client.post("/switch-model", json={"model": "", "strategy": ""})
    assert (answer.status_code, answer.json()) == (200, "success")
    assert plugin.models[0].closed == 1
    assert loaded.status()["status"] == 0


def test_a_switch_releases_the_old_model_first(loaded: LiveHost, plugin: WordPlugin) -> None:
    plugin.entered.clear()
    plugin.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(loaded.switch, "other.pth", "words")
        assert plugin.entered.wait(10)
        assert plugin.models[0].closed == 1
        plugin.hold.set()
        assert answer.result(20).status_code == 200
    assert [model.closed for model in plugin.models] == [1, 0]


def test_mem_3_one_of_two_racing_loads_wins(host: LiveHost, plugin: WordPlugin) -> None:
    plugin.hold.clear()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(host.switch, f"{index}.pth", "words") for index in range(4)]
        wait_for(lambda: sum(answer.done() for answer in answers) == 3)
        status = host.status()
        assert status["status"] == 2 and status["words"] == {"loaded": False, "loading": True}
        refused = host.client.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_loading"
        plugin.hold.set()
        codes = sorted(answer.result(20).status_code for answer in answers)
    assert codes == [200, 304, 304, 304]
    assert len(plugin.models) == 1


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("words broken", "the dictionary is empty"),
        ("words panic", "a panic in an extension"),
        # The limits of the settings are checked after the constructor: that too must not stay in Loading.
        ("words hot", "temperature"),
    ],
)
def test_a_failed_load_leaves_the_host_ready_for_the_next(host: LiveHost, plugin: WordPlugin, strategy: str, words: str) -> None:
    assert words in reason(host, "any.pth", strategy)
    assert all(model.closed == 1 for model in plugin.models)
    assert host.switch("any.pth", "words").status_code == 200


@pytest.mark.parametrize("strategy", [" ", "", "wordsx", "albatrossx", "cuda", "cpu fp64", "cpu fp32 and more"])
def test_a_strategy_that_is_nobodys_is_refused_in_words(host: LiveHost, models: Path, strategy: str) -> None:
    text = reason(host, models / "random.pth", strategy)
    assert "Invalid strategy" in text and "words" in text
    assert host.switch("any.pth", "words").status_code == 200


def test_files_that_cannot_be_loaded(host: LiveHost, models: Path, tmp_path: Path) -> None:
    import torch

    assert "model file not found" in reason(host, "no/such/model.pth", "cpu fp32")
    assert "model file not found" in reason(host, "no/such/model.GGUF", "words")
    assert "model file not found" in reason(host, "nul\0byte.pth", "cpu fp32")
    (tmp_path / "text.gguf").write_text("not a model")
    assert "not a GGUF file" in reason(host, tmp_path / "text.gguf", "cpu")
    (tmp_path / "cut.gguf").write_bytes((models / "random.gguf").read_bytes()[:20000])
    assert "llama.cpp cannot load" in reason(host, tmp_path / "cut.gguf", "cpu")
    (tmp_path / "weights.bin").write_bytes(b"x")
    assert "neither a .pth nor a .gguf" in reason(host, tmp_path / "weights.bin", "cpu fp32")
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    assert "no emb.weight" in reason(host, tmp_path / "other.pth", "cpu fp32")
    torch.save({"emb.weight": torch.zeros(50304, 8)}, tmp_path / "small.pth")
    assert "50304" in reason(host, tmp_path / "small.pth", "cpu fp32")
    assert "one device" in reason(host, models / "random.pth", "cpu fp32 *1 -> cpu fp32")


def test_sec_1_code_in_a_checkpoint_does_not_run(host: LiveHost, tmp_path: Path) -> None:
    import torch

    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self) -> object:
            return (open, (str(marker), "w"))

    torch.save({"emb.weight": Evil()}, tmp_path / "evil.pth")
    reason(host, tmp_path / "evil.pth", "cpu fp32")
    assert not marker.exists()


def test_no_card_is_said_in_words(host: LiveHost, models: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card")
    reason(host, models / "random.pth", "cuda fp16")
    assert host.switch(models / "random.pth", "cpu fp32").status_code == 200


def test_deploy_mode_closes_what_changes_the_host(loaded: LiveHost, plugin: WordPlugin) -> None:
    assert loaded.client.post("/words/clear").json() == "cleared"
    failed = loaded.switch("any.pth", "words broken", deploy=True)
    assert failed.status_code == 500 and loaded.status()["deploy"] is False
    assert loaded.switch("any.pth", "words", deploy=True).status_code == 200
    for path, body in (("/switch-model", {"model": ""}), ("/exit", None), ("/words/clear", None)):
        assert loaded.client.post(path, json=body).status_code == 403, path
    assert loaded.client.post("/update-config", json={"temperature": 1}).status_code == 200
    assert loaded.client.post("/v1/completions", json={"prompt": "a b"}).json()["choices"][0]["text"] == "a b "


def test_deploy_mode_closes_a_plugins_routes_too(loaded: LiveHost, plugin: WordPlugin) -> None:
    assert loaded.client.post("/words/forget/before").status_code == 200
    assert loaded.switch("any.pth", "words", deploy=True).status_code == 200
    for method in ("POST", "PUT", "DELETE"):
        refused = loaded.client.request(method, "/words/forget/after")
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "deploy_mode"
    assert plugin.forgotten == ["before"]
    assert loaded.client.post("/words/count").status_code == 200, "the route says that it changes nothing"
    assert loaded.client.get("/models").status_code == 200
    assert loaded.client.post("/models").status_code == 405
    assert loaded.client.post("/albatross/none").status_code == 404
    assert loaded.client.get("/words/forget/read").status_code == 200


def test_the_end_of_the_server_releases_the_model(plugin: WordPlugin) -> None:
    with LiveHost(("words", plugin)) as host:
        host.switch("any.pth", "words")
        assert host.client.post("/exit").status_code == 200
    assert plugin.models[0].closed == 1


def test_a_stop_answers_a_switch_that_waits(plugin: WordPlugin) -> None:
    plugin.hold.clear()
    try:
        with ThreadPoolExecutor(1) as pool, LiveHost(("words", plugin)) as host:
            answer = pool.submit(host.switch, "any.pth", "words")
            assert plugin.entered.wait(10)
            assert host.client.post("/exit").status_code == 200
            stopped = answer.result(10)
            assert stopped.status_code == 500 and stopped.json()["error"]["code"] == "model_load_failed"
            assert stopped.json()["detail"] == "failed to load: the server is stopping"
    finally:
        plugin.hold.set()
    wait_for(lambda: plugin.models and plugin.models[0].closed)


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_ends_what_runs_by_releasing_the_model(plugin: WordPlugin, stream: bool) -> None:
    with ThreadPoolExecutor(1) as pool, LiveHost(("words", plugin)) as host:
        host.switch("any.pth", "words")
        answer = pool.submit(host.client.post, "/v1/completions", json={"prompt": "one !wait two", "stream": stream})
        wait_for(lambda: plugin.answers)
        httpx.post(host.url + "/exit").raise_for_status()
        ended = answer.result(10)
        assert ended.status_code == 200 and "two" in ended.text
    assert plugin.models[0].closed == 1


def test_a_load_that_outlives_the_server_is_released(plugin: WordPlugin) -> None:
    with LiveHost(("words", plugin)) as host:
        state = host.state
    errors: list[Exception] = []

    def late() -> None:
        try:
            state.switch("any.pth", "words")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    thread.join(10)
    assert "stopping" in str(errors[0]) and plugin.models[0].closed == 1 and state.model is None


def test_preloading_and_its_failure(plugin: WordPlugin, caplog: pytest.LogCaptureFixture) -> None:
    with LiveHost(("words", plugin), preload={"model": "any.pth", "strategy": "words"}) as host:
        assert host.status()["status"] == 3
    with LiveHost(("words", plugin), preload={"model": "any.pth", "strategy": "words broken"}) as host:
        assert host.status()["status"] == 0
    assert "the dictionary is empty" in caplog.text


def test_update_config_merges_and_keeps_its_limits(loaded: LiveHost, plugin: WordPlugin) -> None:
    post = loaded.client.post
    assert post("/update-config", json={"temperature": 2, "top_p": None, "max_tokens": 7}).json() == "success"
    assert post("/update-config", json={"top_k": 3}).status_code == 200
    for name, value in [
        ("temperature", 3.1),
        ("top_p", -1),
        ("penalty_decay", 0.5),
        ("top_k", 101),
        ("max_tokens", 0),
        ("global_penalty", 1),
    ]:
        answer = post("/update-config", json={name: value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name
    post("/v1/completions", json={"prompt": "a"})
    assert plugin.calls[-1]["defaults"] == {"temperature": 2, "max_tokens": 7, "top_k": 3}
    assert plugin.host.saved_config() == plugin.calls[-1]["defaults"]
    assert loaded.switch("any.pth", "words").status_code == 200
    post("/v1/completions", json={"prompt": "a"})
    assert plugin.calls[-1]["defaults"] == {"temperature": 2, "max_tokens": 7, "top_k": 3}, "a switch keeps the saved config"


def _state_file(path: Path, layers: int = 2, heads: int = 2) -> Path:
    import torch

    torch.save({f"blocks.{i}.att.time_state": torch.full((heads, 64, 64), float(i + 1)) for i in range(layers)}, path)
    return path


def test_state_files_reach_a_plugins_model_by_its_facade(host: LiveHost, plugin: WordPlugin, tmp_path: Path) -> None:
    assert host.switch(str(tmp_path / "any.pth"), "words").status_code == 200
    model, post = plugin.models[0], host.client.post
    good = str(_state_file(tmp_path / "state.pth"))
    (tmp_path / "bad.pth").write_bytes(b"nonsense")
    cases = {
        "nowhere.pth": "state file not found",
        str(tmp_path / "bad.pth"): "state file failed to load",
        str(_state_file(tmp_path / "layers.pth", layers=3)): "state shape mismatch",
        str(_state_file(tmp_path / "heads.pth", heads=3)): "state shape mismatch",
        "state.bin": "file format of the model or state model not supported",
    }
    for path, text in cases.items():
        answer = post("/update-config", json={"state": path, "temperature": 3})
        assert (answer.status_code, answer.json()["detail"]) == (400, text), path
        assert model.state_tuned is None and "state" not in plugin.host.saved_config()
    assert post("/update-config", json={"state": good}).status_code == 200
    assert model.state_path == good and len(model.state_tuned) == 6
    assert [float(model.state_tuned[i].mean()) for i in (0, 1, 2, 4)] == [0, 1, 0, 2]
    refused = post("/v1/completions", json={"prompt": "a", "state": "another.pth"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "state"
    assert post("/v1/completions", json={"prompt": "a", "state": good}).status_code == 200
    # A state that was saved earlier counts for the next model too.
    assert host.switch(str(tmp_path / "any.pth"), "words").status_code == 200
    assert len(plugin.models[1].state_tuned) == 6
    assert post("/update-config", json={"state": ""}).status_code == 200
    assert plugin.models[1].state_tuned is None and plugin.models[1].state_path == ""


def test_damaged_state_files_are_refused(host: LiveHost, plugin: WordPlugin, models: Path, tmp_path: Path) -> None:
    import torch

    def values(**more: object) -> dict[str, object]:
        good = {f"blocks.{i}.att.time_state": torch.ones(2, 64, 64) for i in range(2)}
        return {**good, "blocks.1.att.time_state": more["value"]}

    shape = (2, 64, 64)
    damaged = {
        "text": "x",
        "none": None,
        "list": [1.0],
        "sparse": torch.ones(shape).to_sparse(),
        "meta": torch.empty(shape, device="meta"),
        "nan": torch.full(shape, float("nan")),
        "inf": torch.full(shape, 1e300, dtype=torch.float64),
        "bool": torch.ones(shape, dtype=torch.bool),
        "complex": torch.ones(shape, dtype=torch.complex64),
        "scalar": torch.tensor(1.0),
        "flat": torch.ones(128, 64),
    }
    for model, strategy in ((tmp_path / "any.pth", "words"), (models / "random.pth", "cpu fp32")):
        assert host.switch(model, strategy).status_code == 200
        for name, value in damaged.items():
            path = tmp_path / f"{name}.pth"
            torch.save(values(value=value), path)
            answer = host.client.post("/update-config", json={"state": str(path)})
            assert answer.status_code == 400, (name, answer.text)
            assert answer.json()["detail"] in ("state file failed to load", "state shape mismatch"), name
            assert host.state.model.state_tuned is None and "state" not in host.state.defaults()


def test_a_saved_state_that_does_not_fit_is_dropped(host: LiveHost, models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import tiny

    tiny.write(tmp_path / "three.pth", tiny.random_checkpoint(layers=3))
    state = str(_state_file(tmp_path / "two.pth"))
    post = host.client.post
    assert host.switch(models / "random.pth", "cpu fp32").status_code == 200
    assert post("/update-config", json={"state": state, "temperature": 2}).status_code == 200
    answer = host.switch(tmp_path / "three.pth", "cpu fp32")
    assert answer.status_code == 200, answer.text
    assert host.state.model.state_tuned is None and host.state.defaults() == {"temperature": 2}
    assert post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
    host.switch("")
    missing = str(tmp_path / "nowhere.pth")
    assert post("/update-config", json={"state": missing}).status_code == 200, "nothing is loaded that could refuse it"
    assert host.switch(models / "random.pth", "cpu fp32").status_code == 200
    assert "state" not in host.state.defaults()
    warnings = [record.getMessage() for record in caplog.records if "saved state" in record.getMessage()]
    assert len(warnings) == 2
    assert state in warnings[0] and "shape mismatch" in warnings[0] and missing in warnings[1] and "not found" in warnings[1]


@pytest.mark.parametrize("half", ["\ud800", "\udc80"])
def test_names_that_are_no_text(host: LiveHost, plugin: WordPlugin, tmp_path: Path, half: str) -> None:
    def send(path: str, **body: object) -> httpx.Response:
        return host.client.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})

    bodies = [{"model": f"{half}.{kind}", "strategy": strategy} for kind in ("pth", "gguf") for strategy in ("cpu fp32", "words")]
    for body in [*bodies, {"model": "a.pth", "strategy": "words " + half}, {"model": "a.pth", "strategy": "words", "tokenizer": half}]:
        answer = send("/switch-model", **body)
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "model_load_failed", body
        assert answer.json()["detail"].startswith("failed to load: ") and half.encode("utf-8", "backslashreplace").decode() in answer.text
    assert plugin.models == [] and host.status()["status"] == 0
    assert host.switch("any.pth", "words").status_code == 200
    assert send("/update-config", state=half + ".pth").status_code == 400
    assert send("/v1/completions", prompt="a", top_k=half).status_code == 400


def test_models_routes(loaded: LiveHost) -> None:
    get = loaded.client.get
    listed = get("/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["words"] and listed[0]["object"] == "model"
    assert get("/v1/models/words").json()["id"] == "words"
    assert get("/v1/models/some-RWKV").json()["id"] == "words"
    missing = get("/v1/models/gpt-9")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"
    assert get("/models").json() == {"from": "plugin"}, "a plugin's routes come before the host's"
    assert get("/health").json()["model"] == "words"
    assert json.loads(get("/").text) == {"Hello": "World!"}
