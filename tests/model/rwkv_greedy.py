"""Greedy tokens of PyPI's rwkv package: ``python rwkv_greedy.py MODEL.pth JOB.pt RESULT.json``, in a process of its own.

The package reads its settings from the environment while it is imported. JOB holds ``prompts`` (lists of ids), ``count``,
``limit`` (ids below it may be produced) and ``state`` (None or a start state); RESULT gets ``tokens`` and the smallest
``margin`` between the best and the second best logit, so that a test can say that no near-tie decided anything.
"""

import json
import os
import sys

os.environ["RWKV_V7_ON"] = "1"
os.environ["RWKV_CUDA_ON"] = "0"
os.environ.setdefault("RWKV_JIT_ON", "1")

import torch

torch.set_num_threads(1)
from rwkv.model import RWKV

path, job_path, result_path = sys.argv[1:]
job = torch.load(job_path, weights_only=True)
model = RWKV(path.removesuffix(".pth"), "cpu fp32")
tokens, margins = [], []
for prompt in job["prompts"]:
    state = None if job["state"] is None else [part.clone() for part in job["state"]]
    logits, state = model.forward(prompt, state)
    text = []
    for _ in range(job["count"]):
        best = logits[: job["limit"]].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        text.append(int(best.indices[0]))
        logits, state = model.forward([text[-1]], state)
    tokens.append(text)
with open(result_path, "w") as file:
    json.dump({"tokens": tokens, "margin": min(margins)}, file)
