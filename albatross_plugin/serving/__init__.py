"""HTTP side of the plugin. The only folder that imports fastapi."""

from albatross_plugin.serving.evaluate import eval_albatross
from albatross_plugin.serving.sse import sse

__all__ = ["eval_albatross", "sse"]
