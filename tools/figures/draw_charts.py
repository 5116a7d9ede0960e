"""draw_charts.py: the figures of the notes that show committed measurements. tools/figures/draw_figures.py lists and writes
them. Both axes are logarithmic: a factor is the same distance everywhere."""
import csv
import math
from pathlib import Path

from figure import Figure

NOTES = Path(__file__).resolve().parents[2] / "notes"


def rows(name):
    with open(NOTES / name, encoding="ascii") as file:
        return list(csv.DictReader(file))


class Axes:
    """Maps values to places in a figure, and draws the grid."""

    def __init__(self, figure, x_ticks, y_ticks, x_label, y_label, box=(90, 50, 600, 330)):
        self.x_ticks, self.y_ticks, self.figure, self.box = x_ticks, y_ticks, figure, box
        left, top, width, height = box
        for x in x_ticks:
            figure.line(self.x(x), top, self.x(x), top + height, "cell")
            figure.text(self.x(x), top + height + 20, f"{x:,g}", "muted", "middle")
        for y in y_ticks:
            figure.line(left, self.y(y), left + width, self.y(y), "cell")
            figure.text(left - 10, self.y(y) + 5, f"{y:,g}", "muted", "end")
        figure.text(left + width / 2, top + height + 44, x_label, anchor="middle")
        figure.text(left - 70, top - 18, y_label)

    def x(self, value):
        left, _, width, _ = self.box
        low, high = math.log(self.x_ticks[0]), math.log(self.x_ticks[-1])
        return left + 20 + (width - 40) * (math.log(value) - low) / (high - low)

    def y(self, value):
        _, top, _, height = self.box
        low, high = math.log(self.y_ticks[0]), math.log(self.y_ticks[-1])
        return top + height - height * (math.log(value) - low) / (high - low)

    def curve(self, points, kind, dashed=False):
        more = ' stroke-width="2"' + (' stroke-dasharray="6 4"' if dashed else "")
        for (x1, y1), (x2, y2) in zip(points, points[1:]):
            self.figure.line(self.x(x1), self.y(y1), self.x(x2), self.y(y2), kind, more)

    def mark(self, x, y, kind, hint, size=11):
        self.figure.rect(self.x(x) - size / 2, self.y(y) - size / 2, size, size, kind, hint)


# ---- formula, simulator, measurement: costs.md ----

def costs():
    data = [{key: float(value) for key, value in row.items()} for row in rows("costs.csv")]
    figure = Figure("A step's time by how long its communication takes: formula, simulator, measurement",
                    f"{len(data)} runs of the GPT on 2 ranks. To the right: the link's time divided by backward's, "
                    "which is twice forward's. Upwards: the step divided by three times forward. The formula's line is "
                    "1 up to 1, and then rises. " + " ".join(
                        f"{row['link_ms'] / row['forward_ms'] / 2:.2f}: whatif "
                        f"{row['whatif_ms'] / row['forward_ms'] / 3:.2f}, measured "
                        f"{row['measured_ms'] / row['forward_ms'] / 3:.2f}." for row in data), 450)
    axes = Axes(figure, [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5], [0.9, 1, 1.2, 1.5, 2, 3],
                "communication / backward", "step / computing")
    line = [0.01] + [4 ** (i / 30) for i in range(31)]
    axes.curve([(x, 1 + 2 / 3 * max(0, x - 1)) for x in line], "muted")
    for row in data:
        x, computing = row["link_ms"] / row["forward_ms"] / 2, 3 * row["forward_ms"]
        axes.mark(x, row["whatif_ms"] / computing, "all_reduce", f"whatif: {row['whatif_ms']:g} ms", 13)
        axes.mark(x, row["measured_ms"] / computing, "ink", f"measured: {row['measured_ms']:g} ms", 6)
    figure.line(702, 60, 732, 60, "muted", ' stroke-width="2"')
    figure.text(740, 65, "formula")
    figure.legend(702, 92, [("all_reduce", "whatif")])
    figure.legend(702, 117, [("ink", "measured")])
    return figure


# ---- steps to a target, by batch and learning rate: large_batches.md ----

RULES = [("forward", "0.02: no rule", lambda k: 1), ("optimizer", "0.02 × √k", math.sqrt),
         ("all_reduce", "0.02 × k", lambda k: k)]  # k: the batch, in times the least


def large_batches():
    data = [{key: value if key == "end" else float(value or 0) for key, value in row.items()}
            for row in rows("large_batches.csv")]
    hints = [f"batch {run['batch']:g}, rate 0.02 × {run['times']:g}, warm-up {run['warm_up_epochs']:g} epochs" +
             (f": {run['steps']:g} steps" if run["steps"] else f": not reached, {run['end']}") for run in data]
    figure = Figure("Steps until mlp has 88 % right, by the global batch, for several learning rates",
                    "To the right the batch, upwards the steps. " + "; ".join(hints) + ".", 450)
    axes = Axes(figure, [128, 512, 2048, 8192], [50, 100, 200, 500, 1000, 2000, 4000], "global batch, samples",
                "steps to 88 %")
    least = data[0]["batch"]
    first = next(run["steps"] for run in data if run["batch"] == least and run["times"] == 1)
    axes.curve([(least, first), (first * least / 50, 50)], "muted", dashed=True)
    failed = {}
    for run, hint in zip(data, hints):
        kind = next((kind for kind, _, rule in RULES if run["times"] == rule(run["batch"] / least)), "muted")
        if run["steps"]:
            x, y = axes.x(run["batch"]) + (18 if run["warm_up_epochs"] else 0), axes.y(run["steps"])
        else:
            place = failed[run["batch"]] = failed.get(run["batch"], -1) + 1
            x, y = axes.x(run["batch"]) - 18 * place, 68
            figure.text(x, 90, "×", "wrong", "middle", 18, bold=True)
        figure.rect(x - 6, y - 6, 12, 12, kind, hint)
        if run["warm_up_epochs"]:
            figure.outline(x - 8, y - 8, 16, 16, "ink")
    for i, (kind, words) in enumerate([(kind, words) for kind, words, _ in RULES] + [("muted", "other rates")]):
        figure.legend(702, 120 + 26 * i, [(kind, words)])
    figure.outline(702, 212, 14, 14, "ink")
    figure.text(722, 224, "with a warm-up")
    figure.text(704, 252, "×", "wrong", size=18, bold=True)
    figure.text(722, 250, "not reached")
    figure.line(698, 273, 718, 273, "muted", ' stroke-width="2" stroke-dasharray="6 4"')
    figure.text(722, 278, "1/k of the steps")
    return figure


CHARTS = {"costs": costs, "large_batches": large_batches}
