"""What benchmarks of kernels need: `tilec.testing.do_bench`, and tables of what it says."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilec.errors import ToolError
from tilec.runtime.bench import do_bench, do_bench_cudagraph

__all__ = ["Benchmark", "Mark", "do_bench", "do_bench_cudagraph", "perf_report"]


@dataclass(frozen=True)
class Benchmark:
    """What `perf_report` runs a function on, and how it shows that.

    x_names: arguments that take each of x_vals, which are values for all of them or tuples of one
    each. line_arg: the argument that takes each of line_vals, shown as line_names. args: the other
    arguments. plot_name: the table's title, and the name of its files. The rest is for plots.
    """

    x_names: Sequence[str]
    x_vals: Sequence[Any]
    line_arg: str
    line_vals: Sequence[Any]
    line_names: Sequence[str]
    plot_name: str
    args: Mapping[str, Any]
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False
    styles: Sequence[tuple[str, str]] | None = None


class Mark:
    """A function with its benchmarks."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Benchmark | Sequence[Benchmark]) -> None:
        self.fn, self.benchmarks = fn, benchmarks

    def run(self, show_plots: bool = False, print_data: bool = False, save_path: str = "",
            return_df: bool = False, **kwargs: Any) -> Any:
        """Run all. print_data: print the tables; save_path: a folder for them, as .csv, and for
        plots; show_plots and return_df (a data frame for each benchmark) need matplotlib and
        pandas, ToolError without. kwargs: more arguments of the function."""
        single = isinstance(self.benchmarks, Benchmark)
        frames = []
        for bench in [self.benchmarks] if isinstance(self.benchmarks, Benchmark) \
                else self.benchmarks:
            head, rows, spread = self._measure(bench, kwargs)
            if print_data:
                print(f"{bench.plot_name}:\n{_table(head, rows)}")
            if save_path:
                Path(save_path).mkdir(parents=True, exist_ok=True)
                with open(Path(save_path) / f"{bench.plot_name}.csv", "w", newline="",
                          encoding="utf-8") as file:
                    csv.writer(file).writerows([head, *rows])
            if show_plots:
                _plot(bench, rows, spread, save_path)
            if return_df:
                frames.append(_load("pandas").DataFrame(rows, columns=head))
        return (frames[0] if single else frames) if return_df else None

    def _measure(self, bench: Benchmark, kwargs: Mapping[str, Any]
                 ) -> tuple[list[str], list[list[Any]], list[list[tuple[Any, Any]]]]:
        """Names of columns, the rows, and for each row the least and most of each line."""
        rows, spread = [], []
        for x in bench.x_vals:
            xs = list(x) if isinstance(x, (tuple, list)) else [x] * len(bench.x_names)
            if len(xs) != len(bench.x_names):
                raise ValueError(f"{x!r} has {len(xs)} values for {list(bench.x_names)}")
            named = dict(zip(bench.x_names, xs))
            found = [self.fn(**named, **{bench.line_arg: y}, **bench.args, **kwargs)
                     for y in bench.line_vals]
            triples = [t if isinstance(t, tuple) else (t, t, t) for t in found]
            rows.append([*xs, *(mid for mid, _, _ in triples)])
            spread.append([(low, high) for _, low, high in triples])
        return [*bench.x_names, *bench.line_names], rows, spread


def perf_report(benchmarks: Benchmark | Sequence[Benchmark]) -> Callable[..., Mark]:
    """Decorator of a function that measures: gives it a `run` (see Mark)."""
    return lambda fn: Mark(fn, benchmarks)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    texts = [[str(h) for h in head], *(
        [f"{x:.6f}" if isinstance(x, float) else str(x) for x in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts)]
    return "\n".join("  ".join(t.rjust(w) for t, w in zip(row, widths)) for row in texts)


def _plot(bench: Benchmark, rows: Sequence[Sequence[Any]], spread: Sequence[Any],
          folder: str) -> None:
    plots, first = _load("matplotlib.pyplot"), len(bench.x_names)
    figure, axes = plots.subplots()
    xs = [row[0] for row in rows]
    for i, name in enumerate(bench.line_names):
        color, style = bench.styles[i] if bench.styles else (None, None)
        axes.plot(xs, [row[first + i] for row in rows], label=name, color=color, ls=style)
        axes.fill_between(xs, *zip(*(line[i] for line in spread)), alpha=0.15, color=color)
    axes.legend()
    axes.set(xlabel=bench.xlabel or bench.x_names[0], ylabel=bench.ylabel, title=bench.plot_name,
             xscale="log" if bench.x_log else "linear", yscale="log" if bench.y_log else "linear")
    if folder:
        figure.savefig(Path(folder) / f"{bench.plot_name}.png")
    plots.show()


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ToolError(f"{package} is not installed, and was asked for", None,
                        f"pip install {package}") from None
