"""Writes the pictures of the documentation, docs/images/page-*.png, from a real run on the CPU: ``python tests/ui/screenshots.py``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "tests")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from host.live import LiveHost
from ui import steps, storyteller
from ui.browsing import PageErrors, Pages, running_browser

from albatross_plugin import hooks

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Of each picture: the repository carries them for ever.
MOST_BYTES = 150_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    errors = PageErrors()
    with tempfile.TemporaryDirectory() as folder, LiveHost(("albatross", hooks)) as host, running_browser() as browser:
        pages = Pages(browser, errors)
        Pictures(host, pages, Path(folder), options.folder).take()
        pages.close()
    if errors.found:
        sys.exit("\n".join(errors.found))


class Pictures:
    def __init__(self, host: LiveHost, pages: Pages, models: Path, target: Path) -> None:
        self.host, self.pages, self.target = host, pages, target
        self.english = storyteller.write(models / "storyteller.pth", storyteller.ENGLISH, " time", ":")
        self.chinese = storyteller.write(models / "storyteller-zh.pth", storyteller.CHINESE, "：", ":")

    def take(self) -> None:
        page = self._open()
        steps.load(page, self.english)
        self._save(page, "model")
        steps.chat(page, "Tell me a story of the sea.")
        steps.chat(page, "And another one?")
        self._save(page, "chat")
        self._batch(page)
        self._small_and_dark()
        self._expanded_in_chinese()

    def _open(self, **settings: object) -> Page:
        page = self.pages.open(**settings)  # type: ignore[arg-type]
        page.goto(self.host.url + "/albatross/ui")
        return page

    def _batch(self, page: Page) -> None:
        """The batch while it runs, and the engine's figures at the same time."""
        steps.fill(page, "Once upon a time", 500, max_tokens=120, temperature=1, top_p=1, seed=1)
        steps.start(page)
        steps.reached(page, 150)
        self._save(page, "batch")
        steps.show(page, "status")
        page.wait_for_timeout(3000)
        self._save(page, "status")
        steps.show(page, "batch")
        steps.ended(page, seconds=120)

    def _small_and_dark(self) -> None:
        small = self._open(width=360, height=740)
        steps.fill(small, "Once upon a time", 64, max_tokens=60, temperature=1, top_p=1, seed=1)
        steps.start(small)
        steps.ended(small)
        self._save(small, "narrow")
        dark = self._open(dark=True)
        steps.fill(dark, "Once upon a time", 64, max_tokens=60, temperature=1, top_p=1, seed=1)
        steps.start(dark)
        steps.ended(dark)
        self._save(dark, "dark")

    def _expanded_in_chinese(self) -> None:
        self.host.switch(self.chinese, steps.ON_THE_CPU).raise_for_status()
        page = self._open(locale="zh-CN")
        steps.fill(page, "讲一个海边的故事：", 64, max_tokens=120, temperature=1, top_p=1, seed=1)
        steps.start(page)
        steps.ended(page)
        steps.cell(page, 5).hover()
        page.wait_for_timeout(600)
        self._save(page, "expanded-zh")

    def _save(self, page: Page, name: str) -> None:
        path = self.target / f"page-{name}.png"
        # What moves comes to rest, and what was asked for arrives.
        page.wait_for_timeout(400)
        page.screenshot(path=path)
        size = path.stat().st_size
        print(f"{path.name}: {size:,} bytes")
        if size > MOST_BYTES:
            raise SystemExit(f"{path.name} has more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
