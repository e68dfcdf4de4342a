"""Completions and chats in the form of v1.8: one at a time, behind a lock."""

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


Chat, Text = ChatCompletionBody, CompletionBody


async def eval_rwkv(model, request: Request, body, prompt, stream, stop, chat_mode):
    while completion_lock.locked():
        await asyncio.sleep(0.01)
    with completion_lock:
        if isinstance(model, AbstractRWKV):
            set_rwkv_config(model, global_var.get(global_var.Model_Config))
            set_rwkv_config(model, body)
        for text, delta, prompt_tokens, tokens in model.generate(prompt, stop=stop):
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
    return EventSourceResponse(chunks)


async def async_generator_stream_response_tool_call(model, body, request, completion_text, tool_call_id):
    async for event in call_events(eval_rwkv(model, request, body, completion_text, body.stream, body.stop, True)):
        yield event


@router.post("/v1/chat/completions")
async def chat_completions(body: Chat, request: Request):
    model = loaded()
    prompt = chat_prompt(model, body)
    if body.tools and body.stream:
        return EventSourceResponse(async_generator_stream_response_tool_call(model, body, request, prompt, "call_1"))
    chunks = eval_rwkv(model, request, body, prompt, body.stream, body.stop, True)
    if body.stream:
        return streamed(model, chunks)
    whole = await chunks.__anext__()
    return with_call(whole) if body.tools else whole


@router.post("/v1/completions")
async def completions(body: Text, request: Request):
    model = loaded()
    prompt = body.prompt[0] if isinstance(body.prompt, list) else body.prompt
    chunks = eval_rwkv(model, request, body, prompt, body.stream, body.stop, False)
    return streamed(model, chunks) if body.stream else await chunks.__anext__()


@router.post("/v1/embeddings")
@router.post("/embeddings")
async def embeddings(body: EmbeddingsBody, request: Request):
    global requests_num
    requests_num += 1
    vector, tokens = loaded().get_embedding(body.input, body.fast_mode)
    requests_num -= 1
    return {"object": "list", "data": [{"index": 0, "embedding": vector}], "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
