"""Switching models in the form of v1.8: one loader for everything."""

from routes.switching import *


class Own(TextRWKV):
    def generate(self, prompt, stop=None):
        yield from self.words()


TextRWKV.generate = Own.generate


@router.post("/switch-model")
def switch_model(body: SwitchModelBody):
    return switch(body, lambda body: RWKV(model=body.model, strategy=body.strategy, tokenizer=body.tokenizer))
