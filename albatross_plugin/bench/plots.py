"""Drawings of measured rates: throughput over batch, and the fraction of the roofline, one of each for every model.

    python -m albatross_plugin.bench.plots OURS.jsonl PEERS.jsonl --out docs/images

Takes files as ``measurements`` describes them and writes ``throughput-MODEL.svg`` and, where the sizes of the model are known and a file
has the card's ceilings, ``roofline-MODEL.svg``. Needs matplotlib, which the extra ``bench`` brings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albatross_plugin.bench.measurements import OURS, PREFILL, Measurement, find_ceilings, parse, read_lines
from albatross_plugin.bench.roofline import OFFICIAL, Ceilings, pass_work

# Ours first, then the others in the order in which they appear; told apart in black and white by their marks.
COLOURS = ("#c1272d", "#1f5fa8", "#2e8b57", "#b8860b", "#6a4c93", "#555555")
MARKS = "osD^vP"
_LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Series:
    """One line of a drawing: rates in tokens a second by batch, ascending."""

    peer: str
    kind: str
    state: str
    points: Mapping[int, float]

    @property
    def label(self) -> str:
        return f"{self.peer}: {self.kind}" + (", float32 state" if self.state == "fp32" else "")


def series_of(found: Iterable[Measurement], model: str) -> list[Series]:
    """The lines of one model, ours first. Of rates measured twice the last one counts; passes of prompts are no steps."""
    points: dict[tuple[str, str, str], dict[int, float]] = {}
    for one in found:
        if one.model == model and one.batch > 0 and not one.kind.startswith(PREFILL):
            points.setdefault((one.peer, one.kind, one.state), {})[one.batch] = one.tokens_per_second
    made = [Series(*key, dict(sorted(rates.items()))) for key, rates in points.items()]
    return sorted(made, key=lambda line: line.peer != OURS)


def rooflines(line: Series, model: str, ceilings: Ceilings) -> dict[int, float]:
    """The fraction of the roofline by batch, of the state that the series has."""
    sizes, state = OFFICIAL[model], line.state or "fp16"
    return {batch: ceilings.fraction(pass_work(sizes, batch, 1, state), batch / rate) for batch, rate in line.points.items()}


def new_figure(rows: int = 1) -> tuple[Any, Any, Any]:
    """pyplot, a figure, and its axes (an array of them where ``rows`` is more than 1). Draws into files, without a display."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text, and the same figures give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": OURS, "font.size": 10})
    import matplotlib.pyplot as pyplot

    figure, axes = pyplot.subplots(rows, 1, figsize=(8.5, 2.0 + 3.0 * rows), layout="constrained", sharex=rows > 1)
    return pyplot, figure, axes


class Drawing:
    """One pair of axes over batch, in the look that all drawings here share."""

    def __init__(self, title: str, unit: str, batches: Iterable[int]) -> None:
        self._pyplot, self.figure, self.axes = new_figure()
        self.axes.set(title=title, xlabel="sequences at a time", ylabel=unit, xscale="log")
        ticks = sorted(set(batches))
        self.axes.set_xticks(ticks, [str(tick) for tick in ticks])
        self.axes.minorticks_off()
        self.axes.grid(color="#dddddd", linewidth=0.6)
        self.axes.spines[["top", "right"]].set_visible(False)
        self._peers: list[str] = []
        self._kinds: dict[str, list[str]] = {}

    def add(self, line: Series, points: Mapping[int, float]) -> None:
        if line.peer not in self._peers:
            self._peers.append(line.peer)
        place = self._peers.index(line.peer)
        kinds = self._kinds.setdefault(line.peer, [])
        if line.kind not in kinds:
            kinds.append(line.kind)
        self.axes.plot(
            list(points),
            list(points.values()),
            color=COLOURS[place % len(COLOURS)],
            marker=MARKS[place % len(MARKS)],
            markersize=4.5,
            markerfacecolor="white" if line.state == "fp32" else None,
            linestyle=_LINES[kinds.index(line.kind) % len(_LINES)],
            linewidth=2.2 if line.peer == OURS else 1.3,
            label=line.label,
        )

    def save(self, path: Path) -> None:
        self.axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        self.figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        self._pyplot.close(self.figure)


def draw_throughput(model: str, lines: Sequence[Series], ceilings: Ceilings | None, path: Path) -> None:
    batches = sorted({batch for line in lines for batch in line.points})
    drawing = Drawing(f"RWKV-7 {model}: throughput", "tokens a second", batches)
    if ceilings is not None and model in OFFICIAL:
        roof = [batch / ceilings.seconds(pass_work(OFFICIAL[model], batch)) for batch in batches]
        drawing.axes.plot(batches, roof, color="black", linewidth=1.0, label="roofline, float16 state")
    for line in lines:
        drawing.add(line, line.points)
    drawing.axes.set_yscale("log")
    drawing.save(path)


def draw_fractions(model: str, lines: Sequence[Series], ceilings: Ceilings, path: Path) -> None:
    drawing = Drawing(f"RWKV-7 {model}: rate over roofline", "% of the roofline", {batch for line in lines for batch in line.points})
    for line in lines:
        drawing.add(line, {batch: 100 * part for batch, part in rooflines(line, model, ceilings).items()})
    drawing.axes.set_ylim(bottom=0)
    drawing.save(path)


def draw(paths: Iterable[Path], folder: Path) -> list[Path]:
    """The files written. Raises ValueError for files that cannot be read as lines, ImportError without matplotlib."""
    lines = read_lines(paths)
    found = [one for one in map(parse, lines) if one is not None]
    ceilings = find_ceilings(lines)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for model in dict.fromkeys(one.model for one in found):
        series = series_of(found, model)
        if not series:
            continue
        written.append(folder / f"throughput-{model}.svg")
        draw_throughput(model, series, ceilings, written[-1])
        if ceilings is not None and model in OFFICIAL:
            written.append(folder / f"roofline-{model}.svg")
            draw_fractions(model, series, ceilings, written[-1])
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m albatross_plugin.bench.plots", description=__doc__, formatter_class=form)
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of rates")
    parser.add_argument("--out", type=Path, required=True, help="the folder to draw into")
    options = parser.parse_args(arguments)
    try:
        for path in draw(options.files, options.out):
            print(path)
    except ImportError as error:
        sys.stderr.write(f"{error}; pip install albatross-plugin[bench] brings what drawing needs\n")
        return 1
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
