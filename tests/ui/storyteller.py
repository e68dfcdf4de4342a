"""A small checkpoint that tells varied little stories: the script model with several ways on after each token."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import tiny
from cases.scripts import CHAT_START, tokens, world

WIDTH = 256
# So far above the logits of the 65,000 other tokens, a story does not leave its words.
LEAD = 27.0
ENGLISH = """
 there was a small lighthouse at the edge of the sea.
 there was a girl who kept a lantern in her window.
 there was an old fisherman who talked to the wind.
 The lantern burned all night, and the ships found their way home.
 The wind carried a song over the water, and the girl listened.
 The old fisherman mended his nets and waited for the morning.
 In the morning the sea was calm, and a letter lay on the sand.
 In the letter there was a map of the islands, drawn in blue ink.
 She followed the map to a quiet bay, where the lantern fish lived.
 She showed the old fisherman the map, and he laughed for a long while.
 And every night since then the lighthouse has had two lanterns.
"""
CHINESE = """
有一座小小的灯塔，立在海边。
有一个女孩，每天晚上在窗前点灯。
老渔夫对着风说话，风把歌声带到远方。
灯亮了一夜，船都找到了回家的路。
早晨，海面很平静，沙滩上有一封信。
信里有一张地图，画着蓝色的小岛。
女孩跟着地图走，来到一个安静的海湾。
老渔夫看着地图，笑了很久。
从那以后，灯塔里每晚都有两盏灯。
"""


def write(path: Path, text: str, start: str, also: str = CHAT_START, *, sentences: int = 6) -> Path:
    """A model of the pairs of neighbours in ``text``, a sentence a line. After the token ``start`` it goes on as the first line
    begins, after the token ``also`` as those lines that begin otherwise, and ends after about so many ``sentences``."""
    lines = [world().encode(line) for line in text.strip("\n").splitlines()]
    begin, other = tokens(start, also)
    following: dict[int, Counter[int]] = defaultdict(Counter)
    later = [line for line in lines if line[0] != lines[0][0]]
    for line in lines:
        for token, then in pairwise(line):
            following[token][then] += 1
        for each in later:
            following[line[-1]][each[0]] += sentences - 1
        following[line[-1]][0] += len(later)
    following[begin][lines[0][0]] = 1
    following[other].update(line[0] for line in later)
    state = tiny.script_checkpoint([], layers=1, width=WIDTH)
    for direction, (token, counts) in enumerate(following.items()):
        state["emb.weight"][token, direction] = 1.0
        for then, count in counts.items():
            # What the norms make of a unit vector of n numbers: its one number becomes the root of n - 1.
            state["head.weight"][then, direction] = (LEAD + math.log(count / counts.total())) / math.sqrt(WIDTH - 1)
    return tiny.write(path, state)
