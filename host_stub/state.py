"""The host's state: which model is there, in which phase, with which settings; and the switch between models."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import Any

from host_stub import loaders
from host_stub.config import ModelConfigBody, model_settings
from host_stub.errors import ApiError, printable
from host_stub.loads import Loads
from host_stub.models import AbstractRWKV
from host_stub.paths import resolve
from host_stub.plugins import Plugins

logger = logging.getLogger(__name__)


class ModelStatus(IntEnum):
    """The numbers that RWKV-Runner's front end knows."""

    Offline = 0
    Loading = 2
    Working = 3


class HostState:
    """One per application. Routes hold it as ``request.app.state.host``."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self.model: Any = None
        self.status = ModelStatus.Offline
        self.deploy = False
        self.device_name = "CPU"
        self.config = ModelConfigBody()
        self.model_settings: dict[str, Any] = {}
        self.exit: Callable[[], None] | None = None
        # One request at a time on the host's own paths; the thread keeps the event loop free meanwhile.
        self.completion_lock = asyncio.Lock()
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="host-generation")
        self.loads = Loads()
        self._closed = False
        self._closing = threading.Lock()
        self._gate = threading.Lock()
        self._settings_lock = threading.Lock()

    # --- models -----------------------------------------------------------------------------------------------------

    def switch(self, model: str, strategy: str = "", tokenizer: str | None = None, *, cuda: bool = False, deploy: bool = False) -> bool:
        """Unload the old model and load another ("" loads none). False: a load is running already. Blocks.

        Raises ApiError 403 in deploy mode, 500 with the reason when the load failed; the status is Offline then.
        """
        with self._gate:
            if self.deploy:
                raise ApiError(403, "not available in deploy mode", code="deploy_mode")
            if self.status is ModelStatus.Loading:
                return False
            self.status = ModelStatus.Loading
            old, self.model = self.model, None
        outcome = ModelStatus.Offline
        try:
            self._release(old)
            del old
            if model:
                _check_text(model, strategy, tokenizer or "")
                self._publish(*self._load(model, strategy, tokenizer, cuda))
                self.deploy = deploy
                outcome = ModelStatus.Working
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A panic in an extension module is a BaseException; it must end as a failed load too.
            reason = printable(" ".join(str(error).split()) if str(error).strip() else type(error).__name__)
            logger.error("failed to load %s: %s", printable(model) or "nothing", reason)
            logger.debug("where the load failed", exc_info=True)
            error.__traceback__ = None
            raise _load_failed(reason) from None
        finally:
            # Whatever happened, nothing stays in Loading: later switches would be turned away for ever.
            self.device_name = _device_name()
            self.status = outcome
            if outcome is ModelStatus.Offline:
                _collect()
        return True

    def _load(self, model: str, strategy: str, tokenizer: str | None, cuda: bool) -> tuple[dict[str, Any], Any]:
        loaded = self._create(model, strategy, tokenizer, cuda)
        try:
            settings = model_settings(loaded)
            if isinstance(loaded, AbstractRWKV):
                self._apply_saved_state(loaded)
        except BaseException:
            self._release(loaded)
            raise
        logger.info("loaded %s", getattr(loaded, "name", model))
        return settings, loaded

    def _apply_saved_state(self, loaded: Any) -> None:
        """A saved state that does not fit is dropped: it may belong to another model, and must not keep this one from loading."""
        with self._settings_lock:
            saved = self.config.state
            if saved is None:
                return
            try:
                loaders.load_state(loaded, saved)
            except Exception as error:
                logger.warning("the saved state %s is not used: %s", printable(saved), printable(str(error)))
                self.config = self.config.model_copy(update={"state": None})

    def _publish(self, settings: dict[str, Any], loaded: Any) -> None:
        """Make a loaded model the current one, unless the server stopped while it was being loaded."""
        with self._gate:
            if not self._closed:
                self.model_settings, self.model = settings, loaded
                return
        self._release(loaded)
        raise RuntimeError("the server is stopping")

    def _create(self, model: str, strategy: str, tokenizer: str | None, cuda: bool) -> Any:
        if loaders.is_gguf(model):
            return loaders.load_gguf(model, strategy)
        parsed = self.plugins.parse(strategy)
        if parsed is not None:
            loaded = self.plugins.hook.rwkv_runner_create_model(
                strategy=parsed, model_path=resolve(model), tokenizer_path=tokenizer or None
            )
            if loaded is not None:
                self.plugins.register_model_types()
                return loaded
        offered = [str(name) for item in self.plugins.strategies() if (name := item.get("name"))]
        return loaders.load_pth(model, strategy, tokenizer, cuda, offered)

    def _release(self, model: Any) -> None:
        """Let a model's owner free it: the plugins by their hook, the host's own by its method."""
        if model is None:
            return
        self.plugins.shutdown_model(model)
        if type(model).__module__.startswith("host_stub."):
            model.shutdown()
        del model
        _collect()

    def close(self) -> None:
        """At the end of the application: release the model and the worker thread. Idempotent; a load that runs is left behind."""
        with self._closing:
            with self._gate:
                self._closed = True
                old, self.model = self.model, None
                if self.status is not ModelStatus.Loading:
                    self.status = ModelStatus.Offline
            self.loads.abandon(_load_failed("the server is stopping"))
            self._release(old)
            self.worker.shutdown(wait=True, cancel_futures=True)

    # --- settings ---------------------------------------------------------------------------------------------------

    def update_config(self, body: ModelConfigBody) -> None:
        """Merge the keys that were set. A state file is loaded first; when that fails nothing is saved. Blocks."""
        with self._settings_lock:
            model = self.model
            if body.state is not None and model is not None and isinstance(model, AbstractRWKV):
                loaders.load_state(model, body.state)
            self.config = self.config.model_copy(update=body.settings())

    def defaults(self) -> dict[str, Any]:
        """The saved config: only the keys that were set."""
        return self.config.settings()


def _check_text(*names: str) -> None:
    """A name that UTF-8 cannot express could not stand in any answer either. Raises ValueError."""
    for name in names:
        if printable(name) != name:
            raise ValueError(f"{printable(name)!r} is not valid text")


def _load_failed(reason: str) -> ApiError:
    return ApiError(500, f"failed to load: {reason}", code="model_load_failed")


class Host:
    """What plugin routers get: a narrow view of the host."""

    def __init__(self, state: HostState) -> None:
        self._state = state

    def model(self) -> Any:
        return self._state.model

    def saved_config(self) -> dict[str, Any]:
        return self._state.defaults()

    def deployed(self) -> bool:
        return self._state.deploy

    def resolve(self, path: str) -> str:
        return resolve(path)


def _device_name() -> str:
    """The first CUDA card, once torch is loaded; asking never loads torch. The first question may take long: it starts the driver."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available():
        return "CPU"
    return str(cuda.get_device_name(0))


def _collect() -> None:
    """Give memory back to the driver where torch is loaded; it is never imported for that."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
