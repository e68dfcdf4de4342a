"""The model of the mode."""

from utils.rwkv import AbstractRWKV, TextRWKV


class AlbatrossRWKV(TextRWKV):
    def __init__(self, model_path):
        super().__init__(model_path)
        self.name = "the mode of its own"


assert issubclass(AlbatrossRWKV, AbstractRWKV)
