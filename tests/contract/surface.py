"""What a host relies on in a model object, as a check that any model can be put through."""

from __future__ import annotations

from typing import Any

from host_stub.config import model_settings
from host_stub.plugins import missing_surface


def check_model(model: Any) -> None:
    """Assert the whole surface of a loaded RWKV model: methods, attributes and their ranges, the facades of state loading."""
    assert missing_surface(type(model)) == []
    assert bool(model), "hosts ask for the truth of a model to see whether there is one"
    for name in ("name", "model_path", "interface", "user", "bot", "state_path"):
        assert isinstance(getattr(model, name), str), name
    assert model.name and model.model_path.endswith(".pth") and model.user and model.bot
    assert isinstance(model.version, (int, float)) and model.version >= 5
    assert model.tokenizer_len == 65536 and model.EOS_ID == 0 and model.rwkv_type.name == "World"
    settings = model_settings(model)
    assert len(settings) == 8, "every setting has its attribute, within the host's limits"
    assert model.state_tuned is None
    for name in ("model_state", "model_tokens"):
        assert hasattr(model, name), name
    check_facades(model)


def check_facades(model: Any) -> None:
    core = model.model
    assert core.args.n_layer > 0 and core.args.n_embd > 0 and core.version == model.version
    assert all(hasattr(core.strategy[index], name) for index in range(core.args.n_layer) for name in ("device", "atype"))
    assert model.pipeline.decode(model.pipeline.encode("Hello 世界")) == "Hello 世界"


def check_generate(model: Any, body: Any, prompt: str, limit: int) -> list[tuple[Any, ...]]:
    """Assert the five-tuples of one generation of ``limit`` tokens, and return them."""
    items = list(model.generate(body, prompt, stop=None, stop_token_ids=None))
    text = ""
    for kind, cumulative, delta, prompt_tokens, completion_tokens in items:
        text += delta
        assert kind == "text" and isinstance(delta, str) and cumulative == text
        assert prompt_tokens == len(model.pipeline.encode(prompt)) and 0 < completion_tokens <= limit
    assert items[-1][4] == limit
    return items
