"""Models of this small server: the base class, a loader of its own, and what it saves and loads for a model."""

import os
from abc import ABC, abstractmethod

from fastapi import HTTPException
from pydantic import BaseModel, Field


class ModelConfigBody(BaseModel):
    max_tokens: int = Field(None, gt=0, le=102400)
    temperature: float = Field(None, ge=0, le=3)
    top_p: float = Field(None, ge=0, le=1)
    state: str = None


class AbstractRWKV(ABC):
    @abstractmethod
    def fix_tokens(self, tokens): ...


class TextRWKV(AbstractRWKV):
    """Says "own" as often as it may."""

    version, state_path, interface, user, bot = 7, "", ":", "User", "Assistant"
    max_tokens_per_generation, temperature, top_p = 500, 1.0, 0.3

    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]

    def fix_tokens(self, tokens):
        return tokens

    def words(self):
        for count in range(1, self.max_tokens_per_generation + 1):
            yield " own" * count, " own", 1, count

    def get_embedding(self, input, fast_mode):
        return [1.0], 1


def get_model_path(path):
    return path


def RWKV(model, strategy, tokenizer):
    if not strategy.startswith("cpu"):
        raise ValueError("Invalid strategy")
    if not model.endswith(".pth"):
        raise ValueError("no such format")
    return TextRWKV(model)


def load_rwkv_state(model, state_path, print_log=True):
    if model is None or state_path is None:
        return None
    if state_path == "":
        model.state_path, model.state_tuned = "", None
        return None
    import torch

    states = list(torch.load(state_path).values())
    args = model.model.args
    if len(states) != args.n_layer:
        return HTTPException(400, "state shape mismatch")
    model.state_path = state_path
    model.state_tuned = [each for state in states for each in (torch.zeros(args.n_embd), state, torch.zeros(args.n_embd))]
    return None


def set_rwkv_config(model, body):
    for name, attribute in (("max_tokens", "max_tokens_per_generation"), ("temperature", "temperature"), ("top_p", "top_p")):
        if getattr(body, name) is not None:
            setattr(model, attribute, getattr(body, name))


def get_rwkv_config(model):
    return ModelConfigBody(
        max_tokens=model.max_tokens_per_generation, temperature=model.temperature, top_p=model.top_p, state=model.state_path
    )
