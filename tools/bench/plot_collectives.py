#!/usr/bin/env python3
"""Draws what tools/bench/collectives --csv wrote: time and bus bandwidth over message size.

    python3 tools/bench/plot_collectives.py RESULTS.csv [MORE.csv ...] -o collectives.svg

Needs matplotlib (Debian and Ubuntu: python3-matplotlib). Nothing else in lockstep does.
"""
import argparse
import csv
import sys


def read(paths):
    """{(algorithm, ranks): [(bytes, p50 in us, p95 in us, bus bandwidth in GB/s), ...]}, in order of size. Operations
    other than all-reduce have their name in front of the algorithm's."""
    lines = {}
    for path in paths:
        try:
            with open(path, newline="") as file:
                for row in csv.DictReader(file):
                    operation = row.get("operation", "all-reduce")
                    name = row["algorithm"] if operation == "all-reduce" else f"{operation}, {row['algorithm']}"
                    line = lines.setdefault((name, int(row["ranks"])), [])
                    line.append(
                        (int(row["bytes"]), float(row["p50_us"]), float(row["p95_us"]), float(row["busbw_gb_s"]))
                    )
        except (OSError, KeyError, TypeError, ValueError) as error:
            sys.exit(f"plot_collectives.py: {path} is not what tools/bench/collectives --csv writes ({error!r})")
    return {key: sorted(points) for key, points in lines.items()}


def main():
    parser = argparse.ArgumentParser(description="Draws what tools/bench/collectives --csv wrote.")
    parser.add_argument("csv", nargs="+")
    parser.add_argument("-o", "--output", default="collectives.svg", help="svg, png or pdf (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_collectives.py: needs matplotlib (Debian and Ubuntu: python3-matplotlib)")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read(arguments.csv)
    if not lines:
        sys.exit("plot_collectives.py: no measurements in " + ", ".join(arguments.csv))
    ranks = {world for _, world in lines}
    figure, (times, bandwidths) = pyplot.subplots(1, 2, figsize=(13, 5.5))
    for (algorithm, world), points in lines.items():
        label = algorithm if len(ranks) == 1 else f"{algorithm}, {world} ranks"
        sizes, p50, p95, busbw = zip(*points)
        (line,) = times.loglog(sizes, p50, marker=".", label=label)
        times.fill_between(sizes, p50, p95, color=line.get_color(), alpha=0.12)
        bandwidths.semilogx(sizes, busbw, marker=".", label=label)
    times.set(title="time (line: p50, shade: up to p95)", xlabel="bytes", ylabel="microseconds")
    bandwidths.set(title="bus bandwidth", xlabel="bytes", ylabel="GB/s")
    bandwidths.legend(fontsize="small")
    for axes in (times, bandwidths):
        axes.grid(True, which="major", alpha=0.3)
    figure.suptitle(f"all-reduce, float32, {', '.join(str(world) for world in sorted(ranks))} ranks")
    figure.tight_layout()
    figure.savefig(arguments.output)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
