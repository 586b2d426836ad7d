#!/usr/bin/env python3
"""Sweeps of bench/sweep/sweep.sh as one picture (SVG) and a table: time over minibatch and over communication CTAs, a row a shape.

usage: sweep_plot.py --out FILE.svg SWEEP.json...
Times are medians relative to the best point of the shape; the dashed line is the automatic choice, the dotted one its bound of 3%.
"""
import argparse
import json
import math

WIDTH, HEIGHT, LEFT, TOP, GAP = 430, 150, 70, 40, 70
SWEPT = (("minibatch", "rows of a minibatch"), ("comm-workers", "CTAs that move rows"))


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def median(points):
    values = sorted(value for point in points for value in point["layer_ms"]["all"])
    return values[len(values) // 2]


def series(sweep, option):
    pairs = []
    for point in sweep["points"]:
        name, _, value = point["options"].partition("=")
        if name == option:
            pairs.append((int(value), point["layer_ms"]["median"]))
    return sorted(pairs)


def title_of(sweep):
    shape = sweep["shape"]
    return shape["name"] or f"E{shape['experts']} K{shape['top_k']} H{shape['hidden']} I{shape['intermediate']}"


def draw_panel(svg, left, top, pairs, automatic, best, caption):
    low, high = math.log2(pairs[0][0]), math.log2(pairs[-1][0])
    most = min(max(value for _, value in pairs) / best, 1.5)

    def x_of(value):
        return left + (math.log2(value) - low) / (high - low) * WIDTH

    def y_of(ratio):
        return top + HEIGHT - (min(ratio, most) - 1) / max(most - 1, 1e-9) * HEIGHT

    svg.append(f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>')
    for ratio, dash in ((automatic / best, "6 4"), (1.03, "1 4")):
        if ratio <= most:
            svg.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y_of(ratio):.1f}" y2="{y_of(ratio):.1f}" stroke="#b33" '
                       f'stroke-dasharray="{dash}"/>')
    path = " ".join(f"{x_of(value):.1f},{y_of(ms / best):.1f}" for value, ms in pairs)
    svg.append(f'<polyline points="{path}" fill="none" stroke="#246" stroke-width="1.5"/>')
    for value, ms in pairs:
        svg.append(f'<circle cx="{x_of(value):.1f}" cy="{y_of(ms / best):.1f}" r="2.5" fill="#246"><title>{value}: {ms:.3f} ms</title></circle>')
        svg.append(f'<text x="{x_of(value):.1f}" y="{top + HEIGHT + 13}" text-anchor="middle" font-size="9">{value}</text>')
    for step in range(5):
        ratio = 1 + (most - 1) * step / 4
        svg.append(f'<text x="{left - 6}" y="{y_of(ratio) + 4:.1f}" text-anchor="end" font-size="9">{ratio * best:.3g} ms</text>')
    svg.append(f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 28}" text-anchor="middle">{caption}</text>')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("sweeps", nargs="+")
    given = parser.parse_args()
    svg, top = [], TOP
    print(f"{'shape':24s} {'automatic':>10s} {'best':>10s}  at                         automatic/best  dense/automatic")
    for path in given.sweeps:
        sweep = read(path)
        points = sweep["points"]
        best = min(points, key=lambda point: point["layer_ms"]["median"])
        best_ms = best["layer_ms"]["median"]
        automatic = median([point for point in points if point["options"] == "path=fused"])
        print(f"{title_of(sweep):24s} {automatic:10.4f} {best_ms:10.4f}  {best['options']:26s} {automatic / best_ms:14.3f}"
              f" {sweep['dense_ms']['median'] / automatic:16.3f}")
        svg.append(f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{title_of(sweep)}, {sweep["pass"]}</text>')
        for column, (option, caption) in enumerate(SWEPT):
            pairs = series(sweep, option)
            if len(pairs) > 1:
                draw_panel(svg, LEFT + column * (WIDTH + 100), top, pairs, automatic, best_ms, caption)
        top += HEIGHT + GAP
    with open(given.out, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + 2 * WIDTH + 140}" height="{top}" '
                   f'font-family="sans-serif" font-size="11">\n' + "\n".join(svg) + "\n</svg>\n")


if __name__ == "__main__":
    main()
