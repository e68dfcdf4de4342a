"""Completions and chats in the form of v1.9.11: one at a time, behind a lock."""

import asyncio

import global_var
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse
from routes.answering import *

router = APIRouter()
requests_num = 0


def EventSourceResponse(chunks):
    async def events():
        async for chunk in chunks:
            yield f"data: {chunk}\r\n\r\n"

    return StreamingResponse(events(), media_type="text/event-stream")


class Chat(ChatCompletionBody):
    stop_token_ids: list[int] | None = None


class Text(CompletionBody):
    stop_token_ids: list[int] | None = None


def is_albatross_model(model):
    from albatross_engine.adapter import AlbatrossRWKV

    return isinstance(model, AlbatrossRWKV)


async def eval(model, request: Request, body, prompt, stream, stop, stop_token_ids, chat_mode):
    while completion_lock.locked():
        await asyncio.sleep(0.01)
    with completion_lock:
        if isinstance(model, AbstractRWKV):
            set_rwkv_config(model, global_var.get(global_var.Model_Config))
            set_rwkv_config(model, body)
        for _, text, delta, prompt_tokens, tokens in model.generate(body, prompt, stop=stop, stop_token_ids=stop_token_ids):
            if stream:
                yield chunk(model, chat_mode, delta)
        if stream:
            yield chunk(model, chat_mode, "", "stop")
            yield "[DONE]"
        else:
            yield answer(model, chat_mode, text, prompt_tokens, tokens)


def loaded():
    model = global_var.get(global_var.Model)
    if model is None:
        raise HTTPException(400, "model not loaded")
    return model


def streamed(model, chunks):
    if is_albatross_model(model):
        raise HTTPException(500, "the mode of its own does not stream here")
    return EventSourceResponse(chunks)


def async_generator_stream_response_tool_call(model, body, request, completion_text, tool_call_id):
    return call_events(eval(model, request, body, completion_text, body.stream, body.stop, body.stop_token_ids, True))


@router.post("/v1/chat/completions")
async def chat_completions(body: Chat, request: Request):
    model = loaded()
    prompt = chat_prompt(model, body)
    if body.tools and body.stream:
        return EventSourceResponse(async_generator_stream_response_tool_call(model, body, request, prompt, "call_1"))
    chunks = eval(model, request, body, prompt, body.stream, body.stop, body.stop_token_ids, True)
    if body.stream:
        return streamed(model, chunks)
    whole = await chunks.__anext__()
    return with_call(whole) if body.tools else whole


@router.post("/v1/completions")
async def completions(body: Text, request: Request):
    model = loaded()
    prompt = body.prompt[0] if isinstance(body.prompt, list) else body.prompt
    chunks = eval(model, request, body, prompt, body.stream, body.stop, body.stop_token_ids, False)
    return streamed(model, chunks) if body.stream else await chunks.__anext__()


@router.post("/v1/embeddings")
@router.post("/embeddings")
async def embeddings(body: EmbeddingsBody, request: Request):
    global requests_num
    requests_num += 1
    vector, tokens = loaded().get_embedding(body.input, body.fast_mode)
    requests_num -= 1
    return {"object": "list", "data": [{"index": 0, "embedding": vector}], "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
