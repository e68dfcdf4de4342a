"""Who may call, from which page, with which body."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from host.live import LiveHost
from host.word_plugin import WordPlugin
from openai import AuthenticationError, OpenAI

from host_stub.guard import Rules

LIMIT = 64 * 1024


@pytest.fixture(scope="module")
def guarded() -> Iterator[LiveHost]:
    rules = Rules(frozenset(["box.example"]), frozenset(["http://app.example"]), None, LIMIT)
    with LiveHost(("words", WordPlugin()), rules=rules) as running:
        assert running.switch("any.pth", "words").status_code == 200
        yield running


CHANGES = [
    ("/switch-model", {"model": ""}),
    ("/update-config", {"temperature": 1}),
    ("/exit", {}),
    ("/words/clear", {}),
    ("/v1/completions", {"prompt": "a"}),
]


@pytest.mark.parametrize(("path", "body"), CHANGES)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": ""}, 403),
        ({"host": "[::1"}, 403),
        ({"host": "[::1]x"}, 403),
        ({"host": "[127.0.0.1"}, 403),
        ({"host": "localhost:1:2"}, 403),
        ({"host": "evil.example.localhost.."}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_sec_3_a_web_page_cannot_act(guarded: LiveHost, path: str, body: object, headers: dict[str, str], status: int) -> None:
    before = guarded.state.defaults()
    content = {"content-type": "application/json", **headers}
    answer = guarded.client.post(path, content=json.dumps(body), headers=content)
    assert answer.status_code == status and answer.json()["error"]["code"]
    assert guarded.status()["status"] == 3 and guarded.state.defaults() == before


def test_sec_3_a_page_cannot_read_either(guarded: LiveHost) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert guarded.client.get("/v1/models/words", headers=headers).status_code == 403
    preflight = guarded.client.options("/switch-model", headers={"origin": "http://evil.example", "access-control-request-method": "POST"})
    assert preflight.status_code == 403 and "access-control-allow-origin" not in preflight.headers


def test_programs_and_own_pages_may_call(guarded: LiveHost) -> None:
    port = guarded.port
    own = {"origin": f"http://127.0.0.1:{port}", "sec-fetch-site": "same-origin"}
    for headers in (
        {},
        own,
        {"host": f"localhost:{port}"},
        {"host": f"[::1]:{port}"},
        {"host": "box.example"},
        {"host": f"localhost.:{port}"},
        {"host": "[::1]"},
        {"host": "192.168.1.9"},
    ):
        assert guarded.client.post("/v1/completions", json={"prompt": "a"}, headers=headers).status_code == 200, headers
    assert guarded.client.post("/words/clear").json() == "cleared", "a call without a body needs no content type"
    assert guarded.client.get("/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status_code == 200


def test_a_link_on_another_site_does_not_reach_a_plugins_route() -> None:
    plugin = WordPlugin()
    with LiveHost(("words", plugin)) as host:
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            answer = host.client.get(f"/words/forget/{site}", headers={"sec-fetch-site": site, "sec-fetch-mode": "navigate"})
            assert answer.status_code == status, site
        assert plugin.forgotten == ["same-origin", "none"]


def test_an_allowed_origin_gets_its_headers(guarded: LiveHost) -> None:
    headers = {"origin": "http://app.example"}
    preflight = guarded.client.options("/v1/completions", headers={**headers, "access-control-request-method": "POST"})
    assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == "http://app.example"
    answer = guarded.client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "http://app.example"
    assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-origin" not in guarded.client.get("/").headers


def test_an_allowed_origin_may_ask_and_read_refusals() -> None:
    rules = Rules(frozenset(), frozenset(["http://app.example"]), "secret", LIMIT)
    with LiveHost(("words", WordPlugin()), rules=rules) as host:
        page, key = {"origin": "http://app.example"}, {"authorization": "Bearer secret"}
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
        preflight = host.client.options("/v1/completions", headers={**page, **asks})
        assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == page["origin"]
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        assert host.client.options("/v1/completions", headers={"origin": "http://evil.example", **asks}).status_code == 403
        assert host.client.options("/v1/completions", headers=page).status_code == 401, "no preflight"
        large = {"prompt": "a" * LIMIT}
        refusals = [
            (401, host.client.post("/v1/completions", json={"prompt": "a"}, headers=page)),
            (403, host.client.post("/v1/completions", json={"prompt": "a"}, headers={**page, **key, "host": "evil.example"})),
            (413, host.client.post("/v1/completions", json=large, headers={**page, **key})),
            (400, host.client.post("/v1/completions", json={"prompt": "a"}, headers={**page, **key})),
        ]
        for status, answer in refusals:
            assert answer.status_code == status and answer.headers.get_list("access-control-allow-origin") == [page["origin"]], status
        for headers in ({}, {"origin": "http://evil.example"}):
            assert "access-control-allow-origin" not in host.client.get("/status", headers=headers).headers


def test_a_body_above_the_limit_is_a_413(guarded: LiveHost) -> None:
    fits = guarded.client.post("/v1/completions", json={"prompt": "a " * (LIMIT // 4)})
    assert fits.status_code == 200
    large = b'{"prompt": "' + b"a" * LIMIT + b'"}'
    answer = guarded.client.post("/v1/completions", content=large, headers={"content-type": "application/json"})
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(large), 1000):
            yield large[start : start + 1000]

    answer = guarded.client.post("/v1/completions", content=chunks(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert guarded.client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_half_a_request_disturbs_nobody(guarded: LiveHost) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", guarded.port)) as client:
        client.sendall(head)
        assert guarded.client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    assert guarded.client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_bodies_that_are_not_json(guarded: LiveHost) -> None:
    for content in (b"{", b"[]", b"\xff\xfe", b'"text"', b'{"prompt": "a", "temperature": NaN}'):
        answer = guarded.client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400, content
        assert answer.json()["error"]["type"] == "invalid_request_error"
    for path, method, status in (("/nowhere", "GET", 404), ("/v1/completions", "GET", 405)):
        answer = guarded.client.request(method, path)
        assert answer.status_code == status and answer.json()["error"]["message"]


def test_an_api_key_closes_all_but_the_root() -> None:
    with LiveHost(("words", WordPlugin()), rules=Rules.of(api_key="secret")) as host:
        get = host.client.get
        assert get("/").status_code == get("/health").status_code == 200
        for headers in ({}, {"authorization": "secret"}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer sécret".encode()}):
            answer = get("/status", headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert get("/status", headers={"authorization": "bearer secret"}).status_code == 200
        with OpenAI(base_url=host.url + "/v1", api_key="wrong", max_retries=0) as client, pytest.raises(AuthenticationError) as refused:
            client.models.list()
        assert refused.value.code == "invalid_api_key"
        with OpenAI(base_url=host.url + "/v1", api_key="secret", max_retries=0) as client:
            assert client.models.list().data[0].id == "rwkv"


def test_a_public_route_of_a_plugin_needs_no_key() -> None:
    with LiveHost(("words", WordPlugin()), rules=Rules.of(api_key="secret")) as host:
        assert host.client.get("/words/page").json() == "ask for the key"
        assert host.client.head("/words/page").status_code == 200
        for method, path in (
            ("POST", "/words/page"),
            ("GET", "/words/page/"),
            ("GET", "/words/forget/x"),
            ("HEAD", "/status"),
            ("GET", "/x"),
        ):
            assert host.client.request(method, path).status_code == 401, (method, path)
        assert host.client.post("/words/page", headers={"authorization": "Bearer secret"}).status_code == 200
        refused = [
            {"host": "evil.example"},
            {"origin": "http://evil.example"},
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        ]
        assert [host.client.get("/words/page", headers=headers).status_code for headers in refused] == [403] * 3
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert host.client.get("/words/page", headers=link).status_code == 200, "a link on another site opens a page that holds no secret"
