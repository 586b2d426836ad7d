#!/usr/bin/env python3
"""Sweeps of bench/sweep/sweep.sh as one picture (SVG) and a table (Markdown): time over minibatch and over communication CTAs, a row a shape.

usage: sweep_plot.py [--out FILE.svg] [--merge FILE.json] [--docs FILE.md] SWEEP.json...

SWEEP is a file of `mok bench --sweep --confirm N --json`, or a list of such that --merge wrote.
--docs puts the table, and behind it the picture of --out, between the two lines of a page that begin with <!-- sweep table and name the pass, instead
of printing the table.

Picture: medians over those of the automatic choice, which ran in turn with each point; dashed: the automatic choice; dotted: 3% faster, where no point
should be. Table: the automatic choice against the fastest point, both from the last runs of a sweep, in which the three fastest points and the
automatic choice took turns.
"""
import argparse
import json
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from layer_table import put_into, read, shorten, write

WIDTH, HEIGHT, LEFT, TOP, GAP = 430, 120, 60, 40, 62
SWEPT = (("minibatch", "rows of a minibatch"), ("comm-workers", "CTAs that move rows"))
LEAST, MOST = 0.94, 1.3  # of the vertical axis; higher points stand at its end
BOUND = 1.03
MARKS = ("<!-- sweep table, {}: written by bench/sweep/sweep_plot.py -->", "<!-- sweep table, {}: end -->")


def read_sweeps(paths):
    sweeps = []
    for path in paths:
        content = read(path)
        sweeps += content if isinstance(content, list) else [content]
    return sweeps


def options_of(point):
    return dict(pair.split("=") for pair in point["options"].split(",") if pair)


def without_places(sweep):
    """The command with the names of files alone: where they stood says nothing to others."""
    words = [os.path.basename(word) if word.startswith("/") else word for word in sweep["command"].split(" ")]
    return {**sweep, "command": " ".join(words)}


def series(sweep, option):
    """Points that set this option and the path alone."""
    pairs = []
    for point in sweep["points"]:
        options = options_of(point)
        if options.get("path") == "fused" and set(options) == {"path", option}:
            pairs.append((int(options[option]), point["over_as_given"], point["layer_ms"]["median"]))
    return sorted(pairs)


def title_of(sweep):
    shape = sweep["shape"]
    if shape["name"]:
        return shape["name"]
    shared = f" Is{shape['shared_intermediate']}" if shape["shared_intermediate"] else ""
    return f"E{shape['experts']} K{shape['top_k']} H{shape['hidden']} I{shape['intermediate']}{shared}"


def draw_panel(svg, left, top, pairs, caption):
    low, high = math.log2(pairs[0][0]), math.log2(pairs[-1][0])

    def x_of(value):
        return left + 12 + (math.log2(value) - low) / (high - low) * (WIDTH - 24)

    def y_of(ratio):
        return top + HEIGHT - (min(max(ratio, LEAST), MOST) - LEAST) / (MOST - LEAST) * HEIGHT

    svg.append(f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>')
    for ratio, dash in ((1.0, "6 4"), (1 / BOUND, "1 4")):
        svg.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y_of(ratio):.1f}" y2="{y_of(ratio):.1f}" stroke="#b33" stroke-dasharray="{dash}"/>')
    path = " ".join(f"{x_of(value):.1f},{y_of(ratio):.1f}" for value, ratio, _ in pairs)
    svg.append(f'<polyline points="{path}" fill="none" stroke="#246" stroke-width="1.5"/>')
    for value, ratio, ms in pairs:
        x, y = x_of(value), y_of(ratio)
        svg.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="#246"><title>{value}: {ms:.3f} ms, {ratio:.3f}</title></circle>')
        svg.append(f'<text x="{x:.1f}" y="{top + HEIGHT + 12}" text-anchor="middle" font-size="9">{value}</text>')
        if ratio > MOST:
            svg.append(f'<text x="{x:.1f}" y="{y + 12:.1f}" text-anchor="middle" font-size="9">{ratio:.1f}</text>')
    for ratio in (1.0, 1.1, 1.2, 1.3):
        svg.append(f'<text x="{left - 6}" y="{y_of(ratio) + 4:.1f}" text-anchor="end" font-size="9">{ratio:.1f}</text>')
    svg.append(f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 26}" text-anchor="middle">{caption}</text>')


def compare(sweep):
    """(automatic ms, best ms, options of the best) of the last runs. The automatic choice may itself be the best."""
    again = sweep["again"]
    automatic = next(point for point in again if point["options"] == "")["layer_ms"]["median"]
    best = min(again, key=lambda point: point["layer_ms"]["median"])
    return automatic, best["layer_ms"]["median"], best["options"].replace("path=fused,", "") or "automatic"


def table_lines(sweeps):
    first = sweeps[0]
    machine = first["machine"]
    beyond = []
    commits = list(dict.fromkeys(sweep["commit"][:12] for sweep in sweeps))
    lines = [f"{machine['devices'][0].get('name')} x {len(machine['devices'])}, driver {machine['driver']}, {first['shape']['tokens']} tokens a GPU,"
             f" {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}.", "",
             "| shape | pass | automatic, ms | fastest point, ms | which | automatic over fastest | dense / automatic | staged / automatic |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for sweep in sweeps:
        automatic, best, options = compare(sweep)
        if automatic > BOUND * best:
            beyond.append(title_of(sweep))
        staged = [point["over_as_given"] for point in sweep["points"] if point["options"] == "path=staged"]
        lines.append(f"| {title_of(sweep)} | {sweep['pass']} | {automatic:.4f} | {best:.4f} | {options} | {100 * (automatic / best - 1):+.1f}%"
                     f" | {sweep['dense_ms']['median'] / automatic:.3f} | {f'{staged[0]:.3f}' if staged else '-'} |")
    return lines + ["", f"Within 3% of the fastest point: {len(sweeps) - len(beyond)} of {len(sweeps)}" + (f", not {', '.join(beyond)}." if beyond else ".")]


def draw(sweeps):
    svg, top = [], TOP
    for sweep in sweeps:
        svg.append(f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{title_of(sweep)}, {sweep["pass"]}: automatic {compare(sweep)[0]:.3f} ms</text>')
        for column, (option, caption) in enumerate(SWEPT):
            pairs = series(sweep, option)
            if len(pairs) > 1:
                draw_panel(svg, LEFT + column * (WIDTH + 60), top, pairs, caption)
        top += HEIGHT + GAP
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + 2 * WIDTH + 80}" height="{top}" font-family="sans-serif" font-size="11">\n'
            + "\n".join(svg) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="picture")
    parser.add_argument("--merge", help="file for all sweeps as one list")
    parser.add_argument("--docs", help="page to put the table into")
    parser.add_argument("sweeps", nargs="+")
    given = parser.parse_args()
    sweeps = read_sweeps(given.sweeps)
    if given.merge:
        write(given.merge, "[\n" + ",\n".join(json.dumps(shorten(without_places(sweep))) for sweep in sweeps) + "\n]\n")
    if given.out:
        write(given.out, draw(sweeps))
    lines = table_lines(sweeps)
    if given.docs:
        if len({sweep["pass"] for sweep in sweeps}) > 1:
            sys.exit("--docs: sweeps of one pass, each pass has a place of its own in the page")
        if given.out:
            picture = os.path.relpath(given.out, os.path.dirname(os.path.abspath(given.docs)))
            lines += ["", f"![{sweeps[0]['pass']}: time over minibatch and over communication CTAs]({picture})"]
        put_into(given.docs, lines, *(mark.format(sweeps[0]["pass"]) for mark in MARKS))
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
