"""Writes the pictures of the documentation, docs/images/page-*.png, from a real run on the CPU: ``python tests/ui/screenshots.py``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "tests")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from host.live import LiveHost
from PIL import Image
from ui import steps, storyteller
from ui.browsing import PageErrors, Pages, running_browser

from albatross_plugin import hooks

if TYPE_CHECKING:
    from playwright.sync_api import Page

ENGLISH, CHINESE = Path("storyteller.pth"), Path("storyteller-zh.pth")
# Of each picture: the repository carries them for ever.
MOST_BYTES = 150_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    errors = PageErrors()
    target = options.folder.resolve()
    with tempfile.TemporaryDirectory() as folder, LiveHost(("albatross", hooks)) as host, running_browser() as browser:
        # The path in the picture shall be one that says something.
        os.chdir(folder)
        pages = Pages(browser, errors)
        Pictures(host, pages, Path(folder), target).take()
        pages.close()
    if errors.found:
        sys.exit("\n".join(errors.found))


class Pictures:
    """``models``: the folder below which the host looks for relative paths."""

    def __init__(self, host: LiveHost, pages: Pages, models: Path, target: Path) -> None:
        self.host, self.pages, self.target = host, pages, target
        storyteller.write(models / ENGLISH, storyteller.ENGLISH, " time")
        storyteller.write(models / CHINESE, storyteller.CHINESE, "：")

    def take(self) -> None:
        page = self._open()
        steps.load(page, ENGLISH)
        self._save(page, "model")
        for question in ("Tell me a story of the sea.", "And another one?"):
            steps.chat(page, question)
        self._save(page, "chat")
        self._batch(page)
        for name, settings in (("narrow", {"width": 360, "height": 740}), ("dark", {"dark": True})):
            other = self._open(**settings)
            self._start(other, "Once upon a time", 64)
            steps.ended(other)
            other.locator("#batch .batch-results").evaluate("(results) => { results.scrollIntoView(); scrollBy(0, -130); }")
            self._save(other, name)
        self._expanded_in_chinese()

    def _open(self, **settings: Any) -> Page:
        page = self.pages.open(**settings)
        page.goto(self.host.url + "/albatross/ui")
        return page

    def _start(self, page: Page, prompt: str, count: int) -> None:
        steps.fill(page, prompt, count, max_tokens=120, temperature=1, top_p=1, seed=1)
        page.click("#batch .batch-sampling summary")
        steps.start(page)

    def _batch(self, page: Page) -> None:
        """The batch while it runs, and the engine's figures at the same time."""
        self._start(page, "Once upon a time", 500)
        steps.reached(page, 10)
        self._save(page, "batch", pause=0)
        steps.show(page, "status")
        steps.reached(page, 200)
        self._save(page, "status")
        steps.show(page, "batch")
        page.click("#batch .batch-actions .danger")
        steps.ended(page)

    def _expanded_in_chinese(self) -> None:
        self.host.switch(CHINESE, steps.ON_THE_CPU).raise_for_status()
        page = self._open(locale="zh-CN")
        self._start(page, "讲一个海边的故事：", 64)
        steps.ended(page)
        steps.cell(page, 4).hover()
        self._save(page, "expanded-zh", pointer=True)

    def _save(self, page: Page, name: str, pause: float = 600, *, pointer: bool = False) -> None:
        """``pointer``: it stays where it is, and what is under it looks so."""
        path = self.target / f"page-{name}.png"
        if not pointer:
            page.mouse.move(1, 1)
        # What moves comes to rest, and what was asked for arrives.
        page.wait_for_timeout(pause)
        compact(page.screenshot()).save(path, optimize=True)
        size = path.stat().st_size
        print(f"{path.name}: {size:,} bytes")
        if size > MOST_BYTES:
            raise SystemExit(f"{path.name} has more than {MOST_BYTES:,} bytes")


def compact(data: bytes) -> Image.Image:
    """The picture in its 256 most frequent colours: areas keep theirs exactly, edges of letters get the nearest."""
    pixels = np.asarray(Image.open(BytesIO(data)).convert("RGB"))
    colours, places, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts, kind="stable")[:256]]
    distances = ((colours[:, None].astype(int) - palette[None].astype(int)) ** 2).sum(-1)
    picture = Image.fromarray(distances.argmin(-1).astype(np.uint8)[places.reshape(-1)].reshape(pixels.shape[:2]), "L")
    picture.putpalette(palette.tobytes())
    return picture


if __name__ == "__main__":
    main()
