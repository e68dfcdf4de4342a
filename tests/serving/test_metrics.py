"""/metrics, read by the official parsers, against what was asked for."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from docs.pages import rows
from fastapi import FastAPI
from host.live import LiveHost, wait_for
from prometheus_client import CollectorRegistry, Counter, make_asgi_app
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from stub import StubHost

from albatross_plugin import hooks
from albatross_plugin.engine.tally import Tally
from albatross_plugin.serving.metrics import MAX_PAST_MODELS, Counts, Exporter

SCRIPT = [59, 1097, 47, 261, 24281, 40565]
STRATEGY = "albatross device=cpu batch=2"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metrics")
    tiny.write(folder / "script.pth", tiny.script_checkpoint(SCRIPT))
    tiny.write(folder / "poison.pth", tiny.poison_checkpoint(SCRIPT, 47))
    return folder


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveHost]:
    """A host whose engine lets one request wait."""
    monkeypatch.setenv("ALBATROSS_MAX_QUEUE", "1")
    with LiveHost(("albatross", hooks)) as running:
        yield running


class Scrape:
    """The samples of one scrape; several series of one name are added up."""

    def __init__(self, host: LiveHost) -> None:
        answer = host.client.get("/metrics")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=")
        self.families = list(parse_text(answer.text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        found = [s.value for s in self.samples if s.name == "albatross_" + name and labels.items() <= s.labels.items()]
        assert found, f"no sample {name} {labels}"
        return sum(found)

    def outcomes(self, model: str) -> dict[str, float]:
        reasons = ("stop", "length", "abort", "error")
        return {reason: self("request_success_total", model_name=model, finished_reason=reason) for reason in reasons}


def serve(host: LiveHost, folder: Path, name: str) -> None:
    answer = host.switch(folder / f"{name}.pth", STRATEGY)
    assert answer.status_code == 200, answer.text


def ask(host: LiveHost, **body: Any) -> httpx.Response:
    return host.client.post("/v1/completions", json={"prompt": ":", "temperature": 0, **body})


def busy(host: LiveHost) -> Any:
    """A stream that does not end by itself."""
    return host.client.stream("POST", "/v1/completions", json={"prompt": ":", "stream": True, "ignore_eos": True, "max_tokens": 10**5})


def test_req_145_a_known_workload_is_counted_exactly(host: LiveHost, folder: Path) -> None:
    serve(host, folder, "script")
    assert ask(host).status_code == 200
    assert ask(host, prompt=[59] * 4, max_tokens=2, n=2).status_code == 200
    assert ask(host, stop_token_ids=[47], n=2).status_code == 200
    assert ask(host, prompt=[[59], [59, 59]], max_tokens=1).status_code == 200
    assert ask(host, max_tokens=0).status_code == 400
    scrape = Scrape(host)
    # The script's five tokens and token 0; then 2 x 2, 2 x 2 and 2 x 1.
    assert scrape("generation_tokens_total") == 6 + 4 + 4 + 2
    assert scrape("prompt_tokens_total") == 1 + 2 * 4 + 2 + 3
    assert scrape.outcomes("script") == {"stop": 3, "length": 4, "abort": 0, "error": 0}
    assert scrape("prefill_rows_total") == 7
    assert scrape("decode_rows_total") == scrape("inter_token_latency_seconds_count") == 16 - 7
    for name, count in (
        ("request_queue_time", 7),
        ("time_to_first_token", 7),
        ("e2e_request_latency", 7),
        ("request_time_per_output_token", 5),
    ):
        assert scrape(f"{name}_seconds_count") == scrape(f"{name}_seconds_bucket", le="+Inf") == count, name
    assert (
        scrape("e2e_request_latency_seconds_sum")
        >= scrape("time_to_first_token_seconds_sum")
        >= scrape("request_queue_time_seconds_sum")
        > 0
    )
    steps = host.status()["albatross"]["workers"][0]["steps"]
    assert scrape("step_seconds_count") == steps
    assert scrape("step_seconds_sum") <= scrape("e2e_request_latency_seconds_sum")
    assert scrape("memory_peak_bytes") >= scrape("memory_used_bytes") > scrape("model_loaded_bytes") > 10**6
    assert scrape("requests_refused_total") == 0


def test_slots_queue_aborts_and_refusals(host: LiveHost, folder: Path) -> None:
    serve(host, folder, "script")
    assert (Scrape(host)("slots_free"), Scrape(host)("num_requests_running")) == (2, 0)
    with busy(host), busy(host), busy(host):
        wait_for(lambda: Scrape(host)("num_requests_waiting") == 1)
        scrape = Scrape(host)
        assert (scrape("num_requests_running"), scrape("slots_active"), scrape("slots_free"), scrape("queue_limit")) == (2, 2, 0, 1)
        assert ask(host).status_code == 429
        assert ask(host, n=2, stream=True).status_code == 429
        scrape = Scrape(host)
        assert scrape("requests_refused_total", reason="queue_full") == 3
        assert scrape("queue_oldest_wait_seconds") > 0
    wait_for(lambda: Scrape(host).outcomes("script")["abort"] == 3)
    scrape = Scrape(host)
    assert scrape.outcomes("script") == {"stop": 0, "length": 0, "abort": 3, "error": 0}
    assert (scrape("num_requests_running"), scrape("num_requests_waiting"), scrape("slots_free")) == (0, 0, 2)
    assert scrape("generation_tokens_total") == host.status()["albatross"]["tokens"]["generated"]
    assert scrape("request_queue_time_seconds_count") == 2, "the third never got a slot"
    assert scrape("e2e_request_latency_seconds_count") == 0, "nothing was finished"


def test_counters_go_on_across_switches(host: LiveHost, folder: Path) -> None:
    serve(host, folder, "script")
    assert ask(host, max_tokens=3).status_code == 200
    assert Scrape(host).outcomes("script")["length"] == 1
    assert ask(host, max_tokens=3).status_code == 200
    gone = weakref.ref(host.state.model)
    serve(host, folder, "poison")
    assert ask(host).status_code == 500
    scrape = Scrape(host)
    assert scrape.outcomes("poison") == {"stop": 0, "length": 0, "abort": 0, "error": 1}
    assert scrape.outcomes("script")["length"] == 2, "what came after the last scrape is not lost"
    assert [s.labels["model_name"] for s in scrape.samples if s.name == "albatross_slots_free"] == ["poison"]
    assert gone() is None, "metrics do not keep a model"
    assert host.switch("").status_code == 200
    scrape = Scrape(host)
    assert (scrape("model_state", state="offline"), scrape("model_state", state="ready")) == (1, 0)
    serve(host, folder, "script")
    assert ask(host, max_tokens=3).status_code == 200
    scrape = Scrape(host)
    assert scrape.outcomes("script")["length"] == 3 and scrape.outcomes("poison")["error"] == 1
    assert (
        scrape("generation_tokens_total", model_name="script") == scrape("inter_token_latency_seconds_count", model_name="script") + 3 == 9
    )
    assert scrape("model_state", state="ready") == scrape("model_state") == 1


def test_the_form_is_what_linters_ask_for(host: LiveHost, folder: Path) -> None:
    """The rules of promtool's check, and that both formats say the same."""
    serve(host, folder, "script")
    assert ask(host).status_code == 200
    scrape = Scrape(host)
    modern = host.client.get("/albatross/metrics", headers={"accept": OPENMETRICS})
    assert modern.headers["content-type"].startswith("application/openmetrics-text") and modern.text.endswith("# EOF\n")
    spoken = {(s.name, *sorted(s.labels.items())): s.value for family in parse_openmetrics(modern.text) for s in family.samples}
    for family in scrape.families:
        if not family.name.startswith("albatross_"):
            continue
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name) and family.documentation.endswith(".") and family.samples, family.name
        assert family.type in ("gauge", "counter", "histogram")
        words = family.name.split("_")
        assert not {"ms", "milliseconds", "percent", "kb", "mb", "mib", "counter", "gauge", "histogram", "count", "sum", "bucket"} & set(
            words
        )
        assert ("total" in {s.name.split("_")[-1] for s in family.samples}) == (family.type == "counter")
        if family.type == "histogram":
            assert words[-1] == "seconds"
        for sample in family.samples:
            assert len({**sample.labels}) == len(sample.labels)
            assert spoken[(sample.name, *sorted(sample.labels.items()))] == sample.value
        buckets = [s for s in family.samples if s.name.endswith("_bucket")]
        assert [s.value for s in buckets] == sorted(s.value for s in buckets)
        bounds = [float(s.labels["le"]) for s in buckets]
        assert bounds == sorted(set(bounds)) and (not bounds or bounds[-1] == float("inf"))


def test_the_page_names_every_metric(host: LiveHost) -> None:
    told = {}
    for family in Scrape(host).families:
        if family.name.startswith("albatross_"):
            told[family.name + "_total" * (family.type == "counter")] = (family.type, family.documentation)
    page = {name.strip("`"): (kind, meaning) for name, kind, _, meaning in rows("docs/metrics.md", "metric")}
    assert page == told


def test_a_host_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not here')")
    with StubHost(environ={"PYTHONPATH": str(tmp_path)}) as host:
        for path in ("/metrics", "/albatross/metrics"):
            answer = host.client.get(path)
            assert answer.status_code == 501 and "pip install" in answer.json()["error"]["message"], answer.text
        assert host.client.get("/status").status_code == 200
        assert not any("Traceback" in line for line in host.log)


class FakeHost:
    """A host without a model."""

    def model(self) -> Any:
        return None

    def saved_config(self) -> dict[str, Any]:
        return {}

    def deployed(self) -> bool:
        return True


def build(first: bool, **own: Any) -> FastAPI:
    """An application that includes the plugin's routers before or after what it has itself."""
    app = FastAPI()
    routers = hooks.rwkv_runner_routers(FakeHost())
    for router in routers if first else []:
        app.include_router(router)
    if "route" in own:
        app.add_api_route("/metrics", lambda: own["route"])
    if "mount" in own:
        app.mount(own.get("at", "/metrics"), own["mount"])
    if "any" in own:
        app.add_api_route("/{path:path}", lambda path: own["any"])
    for router in [] if first else routers:
        app.include_router(router)
    return app


def get(app: FastAPI, path: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host", follow_redirects=True) as client:
            return await client.get(path)

    return asyncio.run(ask())


@pytest.mark.parametrize("first", [True, False])
def test_a_host_keeps_a_page_of_its_own(first: bool) -> None:
    registry = CollectorRegistry()
    Counter("own", "The host's.", registry=registry).inc(7)
    app = build(first, route="the host's own")
    assert get(app, "/metrics").json() == "the host's own"
    mounted = build(first, mount=make_asgi_app(registry))
    assert "own_total 7.0" in get(mounted, "/metrics").text
    for each in (app, mounted, build(first)):
        assert "albatross_build_info" in get(each, "/albatross/metrics").text
    assert "albatross_build_info" in get(build(first), "/metrics").text


def test_a_front_end_for_all_paths_does_not_hide_it() -> None:
    for app in (build(True, any="page"), build(True, mount=FastAPI(), at="/")):
        assert "albatross_build_info" in get(app, "/metrics").text


def test_what_is_kept_of_models_that_are_gone_is_bounded() -> None:
    exporter = Exporter(FakeHost())
    for number in range(MAX_PAST_MODELS + 5):
        exporter._past[f"model-{number}"] = Counts()
    exporter._current = ("last", Tally(1))
    body, _ = exporter.render("")
    assert len(exporter._past) == MAX_PAST_MODELS and list(exporter._past)[-1] == "last"
    assert b'model_name="last"' in body


def test_two_hosts_in_one_process_do_not_share(host: LiveHost, folder: Path) -> None:
    serve(host, folder, "script")
    with LiveHost(("albatross", hooks)) as other:
        serve(other, folder, "script")
        assert ask(other, max_tokens=2).status_code == 200
        assert Scrape(other)("generation_tokens_total") == 2
        assert Scrape(host)("generation_tokens_total") == 0
