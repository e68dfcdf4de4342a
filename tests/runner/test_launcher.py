"""The launcher in front of look-alikes of the Runner, as a process, through the same checks as real checkouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
for package in ("fastapi", "uvicorn", "httpx", "psutil"):
    pytest.importorskip(package)

from contract import host_checks
from contract.models import Models, models_of_this_run
from contract.served import Served, launcher
from runner.lookalikes import FORMS, put_together

CHECKS = {check.__name__: check for check in host_checks.CHECKS}


@pytest.fixture(scope="module")
def models() -> Models:
    return models_of_this_run()


@pytest.fixture(scope="module", params=FORMS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(launcher(put_together(request.param, tmp_path_factory.mktemp("runner")))) as server:
        server.form = request.param
        yield server


@pytest.mark.parametrize("name", CHECKS)
def test_a_launched_runner(served: Served, models: Models, name: str) -> None:
    check = CHECKS[name]
    if name == "gguf" and served.form == "old":
        check = host_checks.gguf_of_old
    check(served, models)


def test_deploy_mode_and_a_front_end_at_the_root(tmp_path: Path, models: Models) -> None:
    with Served(launcher(put_together("new", tmp_path), "--webui")) as server:
        host_checks.deploy(server, models)
