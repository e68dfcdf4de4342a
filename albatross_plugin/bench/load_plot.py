"""A drawing of runs against a server: throughput and latency over the number of concurrent requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albatross_plugin.bench.plots import COLOURS, MARKS, new_figure

FORMATS = (".png", ".svg", ".pdf")
# What is drawn below the throughput, in milliseconds.
_TIMES = {"first_token_s": "first token", "token_gap_s": "between tokens", "latency_s": "whole answer"}


def check_target(path: Path) -> None:
    """Before anything is measured: raises ValueError for a file that could not be written, ImportError without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path} cannot be drawn: its name must end in one of {', '.join(FORMATS)}")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
    import matplotlib  # noqa: F401


def draw_load(reports: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """``reports`` as ``api_report.summarize`` gives them; they are drawn in ascending concurrency. Raises OSError."""
    ordered = sorted(reports, key=lambda report: int(report["concurrency"]))
    levels = [int(report["concurrency"]) for report in ordered]
    pyplot, figure, (rates, times) = new_figure(rows=2)
    rates.plot(levels, [report["tokens_per_s"] for report in ordered], color=COLOURS[0], marker=MARKS[0], label="tokens/s")
    rates.set(title=title, ylabel="tokens a second")
    rates.set_ylim(bottom=0)
    drawn = {key: name for key, name in _TIMES.items() if any(report.get(key) for report in ordered)}
    for place, (key, name) in enumerate(drawn.items()):
        for part, line in (("p50", "-"), ("p99", ":")):
            points = {level: 1e3 * report[key][part] for level, report in zip(levels, ordered, strict=True) if report.get(key)}
            times.plot(
                list(points),
                list(points.values()),
                color=COLOURS[place % len(COLOURS)],
                marker=MARKS[place % len(MARKS)],
                linestyle=line,
                label=f"{name}, {part}",
            )
    times.set(xlabel="concurrent requests", ylabel="milliseconds")
    if drawn:
        from matplotlib.ticker import FormatStrFormatter, LogLocator

        times.set_yscale("log")
        # Labels at 1, 2 and 5 of each decade: a range of less than a decade has some too.
        times.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        times.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        times.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axes in (rates, times):
        axes.set_xscale("log")
        axes.set_xticks(levels, [str(level) for level in levels])
        axes.minorticks_off()
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Software": None} if path.suffix.lower() == ".png" else None)
    pyplot.close(figure)
