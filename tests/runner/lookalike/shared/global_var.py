"""What the parts of this small server share: a dict behind two functions, emptied at the start."""

from enum import Enum

Args, Model, Model_Status, Model_Config, Deploy_Mode = "args", "model", "model_status", "model_config", "deploy_mode"


class ModelStatus(Enum):
    Offline = 0
    Loading = 2
    Working = 3


def init():
    globals()["GLOBALS"] = {}
    set(Model_Status, ModelStatus.Offline)
    set(Deploy_Mode, False)


def set(key, value):
    GLOBALS[key] = value  # noqa: F821


def get(key):
    return GLOBALS.get(key)  # noqa: F821
