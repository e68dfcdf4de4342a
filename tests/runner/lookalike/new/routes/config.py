"""Switching models in the form of v1.9.11: files of llama.cpp first, then a fast mode of its own, then the loader."""

from routes.switching import *
from utils.llama import *


class Own(TextRWKV):
    def generate(self, body, prompt, stop=None, stop_token_ids=None):
        yield from (("text", *item) for item in self.words())


TextRWKV.generate = Own.generate


def make(body):
    if body.model.endswith(".gguf"):
        return Llama(model_path=body.model, strategy=body.strategy)
    from albatross_engine.config import is_albatross_strategy

    if is_albatross_strategy(body.strategy):
        from albatross_engine.adapter import AlbatrossRWKV

        return AlbatrossRWKV(model_path=body.model)
    return RWKV(model=body.model, strategy=body.strategy, tokenizer=body.tokenizer)


@router.post("/switch-model")
def switch_model(body: SwitchModelBody):
    return switch(body, make)
