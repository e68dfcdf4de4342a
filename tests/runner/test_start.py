"""How the launcher starts: what it finds, what it refuses in words, and what it leaves alone."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("fastapi", "uvicorn", "httpx"):
    pytest.importorskip(package)

from contract.served import Served, launcher
from contract.table import fingerprint
from docs.pages import rows
from runner.lookalikes import FORMS, put_together

from albatross_plugin.runner import launch
from albatross_plugin.runner.checkout import NotServed, find_main, look_at
from albatross_plugin.runner.hookspecs import HookSpecs
from albatross_plugin.runner.points.table import POINTS
from host_stub.hookspecs import HookSpecs as StubSpecs


def start(folder: Path, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The launcher in ``folder``, for starts that end by themselves."""
    return subprocess.run(
        [sys.executable, "-m", "albatross_plugin.runner", *arguments],
        cwd=folder,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_launcher_knows_the_hooks_of_the_contract() -> None:
    def described(specs: type) -> dict[str, tuple[list[str], bool]]:
        return {
            name: ([each for each in inspect.signature(hook).parameters if each != "self"], bool(hook.rwkv_runner_spec["firstresult"]))
            for name, hook in vars(specs).items()
            if name.startswith("rwkv_runner_")
        }

    assert described(HookSpecs) == described(StubSpecs)


@pytest.mark.parametrize("form", FORMS)
def test_a_runner_is_found_by_file_by_folder_and_from_its_root(tmp_path: Path, form: str) -> None:
    main = put_together(form, tmp_path)
    assert find_main(None, tmp_path) == find_main(None, main.parent) == find_main("backend-python/main.py", tmp_path) == main.resolve()
    assert find_main(str(tmp_path), Path("/")) == main.resolve()
    assert look_at(main).form.startswith({"old": "v1.8.1 to v1.9.5", "new": "v1.9.11 or later"}[form])


def test_what_is_no_runner_or_cannot_be_served_is_refused_in_words(tmp_path: Path) -> None:
    main = put_together("old", tmp_path)

    def refusal(*arguments: str, folder: Path = tmp_path) -> str:
        done = start(folder, *arguments)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "the path comes before the flags: albatross-runner ../backend-python/main.py" in refusal(
        "--port", "8000", "../backend-python/main.py", folder=empty
    )
    assert "no Runner is in" in refusal(folder=empty)
    (empty / "main.py").write_text("")
    assert "is not the main.py of a Runner: global_var.py" in refusal("empty/main.py")
    for file in ("main.py", "global_var.py"):
        shutil.copy(main.parent / file, tmp_path / file)
    assert "two Runners are here" in refusal()
    (main.parent / "utils" / "needed.py").write_text("import surely_not_there\n")
    with (main.parent / "utils" / "rwkv.py").open("a") as file:
        file.write("from utils import needed\n")
    assert "lacks surely_not_there, which the Runner needs" in refusal("backend-python/main.py")
    config = main.parent / "routes" / "config.py"
    config.write_text(config.read_text() + 'STRATEGY_REGEX = "cuda|cpu"\n')
    assert "up to v1.6.0; v1.6.1 and later are served" in refusal("backend-python/main.py")
    (main.parent / "routes" / "completion.py").write_text("def (\n")
    assert "completion.py cannot be read" in refusal("backend-python/main.py")


def test_two_copies_of_the_plugin_are_refused(tmp_path: Path) -> None:
    put_together("old", tmp_path)
    copy = tmp_path / "copy" / "albatross_plugin-0.0.9.dist-info"
    copy.mkdir(parents=True)
    (copy / "METADATA").write_text("Metadata-Version: 2.1\nName: albatross-plugin\nVersion: 0.0.9\n")
    done = start(tmp_path, environ={"PYTHONPATH": str(copy.parent)})
    assert done.returncode == 2 and "installed twice" in done.stderr and "0.0.9 in" in done.stderr


def test_a_runner_without_completions_is_not_served(tmp_path: Path) -> None:
    main = put_together("new", tmp_path)
    completion = main.parent / "routes" / "completion.py"
    completion.write_text(completion.read_text().replace("async def eval(", "async def evaluate("))
    with pytest.raises(NotServed, match="no function that completions go through"):
        look_at(main)


def test_other_scripts_and_pip_run_as_by_python(tmp_path: Path) -> None:
    (tmp_path / "dep_check.py").write_text("import sys; print(sys.argv, 'albatross_plugin' in sys.modules)")
    done = start(tmp_path, "dep_check.py", "--in", "a b")
    assert done.returncode == 0 and done.stdout.strip() == "['dep_check.py', '--in', 'a b'] False"
    assert start(tmp_path, "-c", "raise SystemExit(7)").returncode == 7


def test_a_runner_that_lacks_a_point_starts_and_says_so(tmp_path: Path) -> None:
    main = put_together("new", tmp_path)
    config = main.parent / "routes" / "switching.py"
    config.write_text(config.read_text().replace('"/status"', '"/state"'))
    with Served(launcher(main)) as server:
        line = next(line for line in server.log if line.startswith("albatross-runner"))
    assert "status is not in force: routes.config has no route /status" in line
    assert re.search(r"in force: [^;]*loader, completions", line)


def test_the_start_is_told_in_one_line_and_leaves_no_trace(tmp_path: Path) -> None:
    import albatross_plugin

    main = put_together("new", tmp_path)
    before = fingerprint(main.parent)
    with Served(launcher(main)) as server:
        assert server.client.get("/status").json()["strategies"][0]["name"] == "albatross"
        said = [line for line in server.log if "albatross" in line]
    assert len(said) == 1 and said[0].startswith(f"albatross-runner {albatross_plugin.__version__}: RWKV-Runner v1.9.11 or later")
    assert said[0].rstrip().endswith(", ".join(point.name for point in POINTS))
    with Served([sys.executable, str(main)]) as server:
        assert "strategies" not in server.client.get("/status").json()
        assert server.switch("a.pth", "albatross").status_code == 200
        assert server.client.get("/v1/models").json()["data"][0]["id"] == "the mode of its own", "without the launcher nothing has changed"
    assert fingerprint(main.parent) == before


def test_the_runners_own_mode_is_kept_when_asked_for(tmp_path: Path) -> None:
    with Served(launcher(put_together("new", tmp_path), launch.KEEP_BUILTIN)) as server:
        assert server.switch("a.pth", "albatross workers=1 batch=2").json() == "success"
        assert server.client.get("/v1/models").json()["data"][0]["id"] == "the mode of its own"
        answer = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2}).json()
        assert answer["choices"][0]["text"] == " own own"


def test_the_page_lists_every_interception_point() -> None:
    assert [(name, module.strip("`")) for name, module, _ in rows("docs/runner.md", "point")] == [
        (each.name, each.module) for each in POINTS
    ]


def test_help_tells_the_launchers_flag_and_the_runners(tmp_path: Path) -> None:
    put_together("old", tmp_path)
    done = start(tmp_path, "--help")
    assert done.returncode == 0 and launch.KEEP_BUILTIN in done.stdout and "--webui" in done.stdout, done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    done = start(empty, "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: albatross-runner") and "no Runner is in" in done.stdout, done.stderr
    assert done.stderr == ""
