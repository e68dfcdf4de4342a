"""A server in the layout of RWKV-Runner's backend, as far as the launcher touches it. It is started as a script and imported again."""

import argparse
import os
import sys

sys.path.append(os.path.dirname(os.path.realpath(__file__)))

from contextlib import asynccontextmanager

import global_var
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse
from routes import completion, config, misc
from utils.rwkv import *


def get_args(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--webui", action="store_true")
    return parser.parse_args(words)


@asynccontextmanager
async def lifespan(_):
    global_var.init()
    global_var.set(global_var.Args, get_args(os.environ["RWKV_RUNNER_PARAMS"].split()))
    yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_credentials=True, allow_methods=["*"], allow_headers=["*"])
for part in (completion, config, misc):
    app.include_router(part.router)


@app.post("/exit")
def exit():
    if global_var.get(global_var.Deploy_Mode):
        raise HTTPException(403)
    os.kill(os.getpid(), 9)


if "--webui" in os.environ.get("RWKV_RUNNER_PARAMS", "").split():
    front = FastAPI()

    @front.get("/{path:path}")
    def page(path: str):
        return HTMLResponse("<p>the front end</p>")

    app.mount("/", front)


if __name__ == "__main__":
    os.environ["RWKV_RUNNER_PARAMS"] = " ".join(sys.argv[1:])
    uvicorn.run("main:app", port=get_args().port, log_level="warning")
