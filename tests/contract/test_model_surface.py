"""The host's own model keeps the contract that plugins' models are held to."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rwkv")

from contract.surface import check_generate, check_model

from host_stub.loaders import load_pth
from host_stub.models import AbstractRWKV


def test_the_rwkv_packages_model(tmp_path: Path) -> None:
    import tiny

    path = tmp_path / "F1.pth"
    tiny.write(path, tiny.random_checkpoint())
    model = load_pth(str(path), "cpu fp32", None, False, [])
    try:
        assert isinstance(model, AbstractRWKV) and model.name == "F1"
        check_model(model)
        model.temperature, model.max_tokens_per_generation = 0, 3
        check_generate(model, None, "Hello", 3)
    finally:
        model.shutdown()
        model.shutdown()
    assert model.model is None


def test_req_19_20_the_plugins_model(tmp_path: Path) -> None:
    import tiny

    from albatross_plugin.adapter import AlbatrossRWKV
    from host_stub.plugins import Plugins

    plugins = Plugins()
    plugins.load()
    plugins.register_model_types()
    path = tmp_path / "F1.pth"
    tiny.write(path, tiny.random_checkpoint())
    model = AlbatrossRWKV(str(path), 1, 2, device="cpu")
    try:
        assert isinstance(model, AbstractRWKV), "a virtual subclass, by the plugin's model types"
        assert AbstractRWKV not in type(model).__mro__
        check_model(model)
        check_generate(model, {"temperature": 0, "ignore_eos": True, "max_tokens": 3}, "Hello", 3)
    finally:
        model.shutdown()
