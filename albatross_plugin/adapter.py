"""AlbatrossRWKV: the model object that a host holds. It owns the engine's thread and speaks the host's surface."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from albatross_plugin.completion import AlbatrossCompletion
from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.core import AsyncEngineCore
from albatross_plugin.engine.prefixes import KEPT_ROWS, LEAST_TOKENS
from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.engine.tally import Tally
from albatross_plugin.engine_thread import EngineThread
from albatross_plugin.errors import EngineInitError, EngineInitTimeout, RequestError, UnsupportedError, shown
from albatross_plugin.facade import ModelFacade, PipelineFacade
from albatross_plugin.grammar import Grammars, JsonGrammar, json_source
from albatross_plugin.options import GenerationOptions, read_options
from albatross_plugin.preparation import check_device, check_model_path, prepare_kernels, resolve
from albatross_plugin.response_format import ResponseFormat
from albatross_plugin.strategy import AlbatrossStrategy
from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

logger = logging.getLogger(__name__)

EXECUTORS = {
    "cpu": "albatross_plugin.model.executor:TorchExecutor",
    "cuda": "albatross_plugin.model.cuda_executor:CudaExecutor",
}
NO_RNN = "AlbatrossRWKV uses batch inference. Use generate() instead of run_rnn()."
NO_EMBEDDING = "AlbatrossRWKV does not support embeddings. Use the standard RWKV backend for embedding tasks."


class RWKVType(Enum):
    """The families that hosts tell apart; this engine serves World models."""

    NoneType = 1
    Raw = 2
    World = 3
    Music = 4


class AlbatrossRWKV:
    """An RWKV-7 model behind a continuous-batching engine; a virtual subclass of the host's AbstractRWKV.

    ``worker_num`` workers run ``batch_size`` requests each. ``tokenizer`` is a vocabulary file or name ("" and None:
    the default). Raises EngineInitError with the cause when anything is missing, within seconds.
    """

    def __init__(
        self,
        model_path: str,
        worker_num: int = 1,
        batch_size: int = 32,
        tokenizer: str | None = None,
        *,
        device: str | None = None,
        config: EngineConfig | None = None,
        executor: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config or EngineConfig.load(AlbatrossStrategy(worker_num, batch_size, device))
        self.model_path = resolve(model_path)
        self.name = Path(self.model_path).stem
        self._set_metadata()
        self._finalizer: weakref.finalize[..., AlbatrossRWKV] | None = None
        try:
            self.tokenizer = WorldTokenizer(find_vocabulary(tokenizer))
            check_model_path(self.model_path)
            check_device(self.config)
            if executor is None and self.config.device == "cuda":
                prepare_kernels(self.config, self.model_path, self.tokenizer.token_limit)
            self._init_engine(executor or EXECUTORS[self.config.device], dict(options or {}))
        except (EngineInitError, EngineInitTimeout):
            raise
        except Exception as error:
            raise EngineInitError(str(error) or type(error).__name__) from error
        self.pipeline = PipelineFacade(self.tokenizer)
        self.model = ModelFacade(self.info.n_layer, self.info.n_embd, self.info.vocab_size)
        logger.info("Albatross engine initialized: workers=%d, batch_size=%d", self.config.workers, self.config.batch)

    def _set_metadata(self) -> None:
        """What hosts read and write on a model object (their ``get_rwkv_config``, chat template and state loader)."""
        self.version = 7
        self.EOS_ID = 0
        self.tokenizer_len = 65536
        self.rwkv_type = RWKVType.World
        self.interface, self.user, self.bot = ":", "User", "Assistant"
        usual = SamplingParams()
        self.max_tokens_per_generation = usual.max_tokens
        self.temperature = usual.temperature
        self.top_p = usual.top_p
        self.top_k = usual.top_k
        self.penalty_alpha_presence = usual.presence_penalty
        self.penalty_alpha_frequency = usual.frequency_penalty
        self.penalty_decay = usual.penalty_decay
        self.global_penalty = usual.global_penalty
        self.state_path = ""
        self.state_tuned: list[Any] | None = None
        self.model_state: Any = None
        self.model_tokens: list[int] = []
        self._grammars: Grammars | None = None

    def _init_engine(self, executor: str, options: dict[str, Any]) -> None:
        """Start the engine and its workers."""
        specs = [
            WorkerSpec(
                executor=executor,
                model_path=self.model_path,
                device=self.config.device,
                worker=index,
                rows=self.config.batch + 1,
                token_limit=self.tokenizer.token_limit,
                threads=self.config.cpu_threads,
                pass_tokens=self.config.pass_budget,
                kept=KEPT_ROWS,
                state=self.config.state,
                graphs=self.config.graphs,
                options=options,
            )
            for index in range(self.config.workers)
        ]
        self._core = AsyncEngineCore(self.config, specs, name=self.name)
        engine = EngineThread(self._core)
        # A host that only drops its reference gets its memory back too.
        self._finalizer = weakref.finalize(self, engine.stop)
        try:
            self.info = engine.start()
        except BaseException:
            self.shutdown()
            raise

    # --- generation -------------------------------------------------------------------------------------------------

    def open(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
        *,
        loop: asyncio.AbstractEventLoop | None,
        group: int | None = None,
        shared: int = 0,
    ) -> AlbatrossCompletion:
        """Submit every (prompt, choice), all or nothing; ``index = prompt * n + choice``. Never blocks.

        ``prompts`` are lists of token ids. ``loop`` is where the completion will be read (None: synchronously).
        ``group``: of ``new_name()``, where several submissions belong to one call and shall share its turns. ``shared``: of the same, the
        name of the one prompt that this submission has in common with others, so that it is fed once.
        Raises RequestError (400 bad ids or too long, 429 queue full, 503 going away).
        """
        self.check_room(len(prompts) * options.n)
        state = tuple(self.state_tuned) if self.state_tuned else None
        options.sampling.check_vocabulary(self.vocabulary_size)
        group = self.new_name() if group is None else group
        requests = []
        for prompt in prompts:
            if len(prompt) > self.config.max_prompt_tokens:
                message = f"the prompt has {len(prompt)} tokens; at most {self.config.max_prompt_tokens} are accepted"
                raise RequestError(message, param="prompt", code="context_length_exceeded")
            ids = tuple(prompt)
            name = shared or (self.new_name() if options.n > 1 else 0)
            # With another state file it is another beginning; a request that is open keeps its own file's tensors, and so their id.
            key = (name, id(state[0]) if state else 0) if name and len(ids) >= LEAST_TOKENS else None
            for choice in range(options.n):
                params = options.for_choice(choice)
                requests.append(Request(self._core.next_request_id(), ids, params, group, options.priority, state, key))
        source = self._core.submit(requests, loop=loop)
        lengths = [len(request.prompt_ids) for request in requests]
        return AlbatrossCompletion(source, self.tokenizer.token_bytes, options.stops, [r.params for r in requests], lengths)

    def new_name(self) -> int:
        """A name for one call in the queue, where calls are served in turn, or for one prompt."""
        return self._core.next_request_id()

    def places(self) -> int:
        """How many more requests would be taken now, if their prompts are short; asking is free."""
        return self._core.places()

    def crowded(self, tokens: int) -> bool:
        """Whether one more prompt of so many tokens would leave less than half of the queue to other calls; asking is free."""
        return self._core.crowded(tokens)

    def has_slot(self, completion: AlbatrossCompletion) -> bool:
        """Whether a request of this submission holds a slot."""
        return any(map(self._core.has_slot, completion.request_ids))

    def check_room(self, count: int) -> None:
        """Raises RequestError (400, 429, 503) if ``count`` more requests would not be taken now; cheap, before encoding."""
        self._core.check_room(count)

    @property
    def vocabulary_size(self) -> int:
        """Ids from 0 to one below this may stand in a prompt, a stop list or a bias."""
        return min(self.info.vocab_size, self.tokenizer_len)

    def check_ids(self, prompt: Sequence[Any]) -> list[int]:
        """A client's own list of token ids, checked. Raises RequestError that names the first bad one."""
        for token in prompt:
            if type(token) is not int or not 0 <= token < self.vocabulary_size:
                message = f"the prompt holds {shown(token)}, which is not a token id from 0 to {self.vocabulary_size - 1}"
                raise RequestError(message, param="prompt")
        return list(prompt)

    def options(
        self,
        body: Any,
        *,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        chat_mode: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> GenerationOptions:
        """The call's settings: ``body`` over ``defaults`` (the host's saved config) over this object's attributes."""
        return read_options(body, self, stop=stop, stop_token_ids=stop_token_ids, chat_mode=chat_mode, defaults=defaults)

    def grammar(self, wanted: ResponseFormat, functions: Sequence[str] = ()) -> JsonGrammar:
        """What binds a text of this model to a form. May take seconds. Raises RequestError that names response_format."""
        source = json_source(wanted.schema, wanted.lenient, functions)
        if self._grammars is None:
            self._grammars = Grammars.of(self.tokenizer.vocabulary, self.info.vocab_size)
        return self._grammars.compile(source)

    def generate(
        self,
        body: Any,
        prompt: str | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        **_: Any,
    ) -> Iterator[tuple[Any, ...]]:
        """Generate synchronously: an iterator of five-tuples, see AlbatrossCompletion.

        The older form ``generate(prompt, stop=...)`` is told apart by its first argument and yields
        ``(cumulative, delta, prompt_tokens, completion_tokens)``.
        """
        old_form = isinstance(body, str)
        text = body if old_form else prompt
        options = self.options(None if old_form else body, stop=stop, stop_token_ids=stop_token_ids)
        completion = self.open([self.encode_prompt(text)], options, loop=None)
        return (item[1:] for item in completion) if old_form else iter(completion)

    def async_generate(
        self,
        body: Any,
        prompt: str,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        **_: Any,
    ) -> AlbatrossCompletion:
        """As ``generate``, for ``async for`` on the running loop; the returned object has ``abort()``."""
        options = self.options(body, stop=stop, stop_token_ids=stop_token_ids)
        return self.open([self.encode_prompt(prompt)], options, loop=asyncio.get_running_loop())

    def encode_prompt(self, prompt: str | None) -> list[int]:
        """Token ids of a prompt; an empty one becomes a newline, as in the host."""
        return self.tokenizer.encode(prompt or "\n")

    # --- life -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """JSON-able state of the engine: phase, load progress, slots, queue, rates. From any thread."""
        return {"model": self.name, **self._core.status()}

    @property
    def tally(self) -> Tally:
        """Counts and times of the requests, for whoever wants to keep them beyond this object's end."""
        return self._core.tally

    def shutdown(self) -> None:
        """End every request, join every thread, release the model's memory. Idempotent, from any thread."""
        if self._finalizer is not None:
            self._finalizer()
        self.state_tuned = None
        self._grammars = None

    # --- the host's abstract surface --------------------------------------------------------------------------------

    def run_rnn(self, _tokens: list[int], newline_adj: int = 0) -> NoReturn:
        raise UnsupportedError(NO_RNN)

    def get_embedding(self, input: str, fast_mode: bool = False) -> NoReturn:
        raise UnsupportedError(NO_EMBEDDING)

    def adjust_occurrence(self, occurrence: dict[int, float], token: int) -> None:
        """Penalties are the sampler's own affair here."""

    def adjust_forward_logits(self, logits: Any, occurrence: dict[int, float], i: int) -> None:
        """Penalties are the sampler's own affair here."""

    def fix_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def delta_postprocess(self, delta: str) -> str:
        return delta
