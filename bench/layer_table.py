#!/usr/bin/env python3
"""Results of `mok bench` as tables, with the baseline of torch_nccl.py beside them; and as one JSON file.

usage: layer_table.py [--merge FILE] [--torch FILE] [--docs FILE] RESULT...

RESULT is a file of `mok bench --json`, or a list of such that --merge wrote. The name of a file says what it is to the others:
  NAME.json                  a run with balanced routing
  NAME@SKEW.json             the same shape with another routing
  NAME@SKEW-balanced.json    balanced, with as many rows on every rank as the busiest one of that skewed run has
--docs puts the tables between the two lines that begin with <!-- layer tables in a page, instead of printing them.

In the tables: medians [least most] in ms; share = dense / layer; floor = layer / its floor; stages = layer / sum of its stages' floors.
"""
import argparse
import json
import math
import os
import sys

BEGIN = "<!-- layer tables: written by bench/layer_table.py -->"
END = "<!-- layer tables: end -->"
PASSES = ("forward", "backward")


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: cannot be read: {error.strerror if isinstance(error, OSError) else error}")


def write(path, text):
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        sys.exit(f"{path}: cannot be written: {error.strerror}")


def read_results(paths):
    """All results, each with its title."""
    results = []
    for path in paths:
        if os.path.exists(path):
            content = read(path)
            for result in content if isinstance(content, list) else [content]:
                result.setdefault("title", os.path.splitext(os.path.basename(path))[0])
                results.append(result)
    return results


def shorten(value, keeps_runs=True):
    """Six digits; the single runs only where `keeps_runs`."""
    if isinstance(value, float):
        return value if value == 0 or not math.isfinite(value) else float(f"{value:.6g}")
    if isinstance(value, list):
        return [shorten(part, keeps_runs) for part in value]
    if isinstance(value, dict):
        return {key: shorten(part, keeps_runs and key not in ("stages", "yardsticks")) for key, part in value.items() if key != "all" or keeps_runs}
    return value


def span(spread):
    digits = 3 if spread["median"] < 100 else 1
    return f"{spread['median']:.{digits}f} [{spread['least']:.{digits}f} {spread['most']:.{digits}f}]"


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(header, rows):
    return [row(header), row(["---"] * len(header))] + [row(cells) for cells in rows]


def skew_of(result):
    """(name of the shape, skew or "", 1 = the balanced run to compare with)."""
    name, _, skew = result["title"].partition("@")
    is_pair = skew.endswith("-balanced")
    return name, skew[: -len("-balanced")] if is_pair else skew, is_pair


# ---- tables ------------------------------------------------------------------------------------------------------------------


def layer_rows(results, torch):
    rows = []
    for result in results:
        name, skew, _ = skew_of(result)
        if skew:
            continue
        for direction in PASSES:
            other = torch.get(name, {}).get(direction)
            for path, passes in result["paths"].items():
                part = passes[direction]
                against = f"{other['layer_ms']['median'] / part['layer_ms']['median']:.2f}" if other else "-"
                rows.append([name, direction, path, span(part["layer_ms"]), f"{part['tflops_per_gpu']:.0f}",
                             f"{part['dense_over_layer']['median']:.3f}", f"{part['layer_over_floor']['median']:.2f}",
                             f"{part['layer_over_stage_floors']['median']:.2f}", span(other["layer_ms"]) if other else "-", against])
    return rows


def zero_copy_rows(results):
    rows = []
    for result in results:
        for path, passes in result["paths"].items():
            part = passes.get("forward_zero_copy")
            if part and not skew_of(result)[1]:
                rows.append([result["title"], path, span(part["layer_ms"]), f"{part['tflops_per_gpu']:.0f}",
                             f"{part['dense_over_layer']['median']:.3f}", f"{part['over_published']['median']:.3f}"])
    return rows


def skew_rows(results):
    rows, pairs = [], {}
    for result in results:
        name, skew, is_pair = skew_of(result)
        if is_pair:
            pairs[name, skew] = result
    for result in results:
        name, skew, is_pair = skew_of(result)
        if not skew or is_pair or (name, skew) not in pairs:
            continue
        pair = pairs[name, skew]
        for direction in PASSES:
            for path, passes in result["paths"].items():
                ms, pair_ms = passes[direction]["layer_ms"], pair["paths"][path][direction]["layer_ms"]
                rows.append([name, skew, direction, path, f"{max(result['rows']) / (sum(result['rows']) / len(result['rows'])):.2f}", span(ms),
                             f"{pair['shape']['tokens']}", span(pair_ms), f"{ms['median'] / pair_ms['median']:.3f}"])
    return rows


def stage_rows(results):
    rows = []
    for result in results:
        if skew_of(result)[1]:
            continue
        for direction in PASSES:
            parts = [f"{stage['stage']} {stage['ms']['median']:.3f} ({stage['over_floor']['median']:.2f})" for stage in result["stages"]
                     if stage["pass"] == direction]
            rows.append([result["title"], direction, ", ".join(parts)])
    return rows


def count_faster(results, torch, path):
    """(passes in which the path is faster than the baseline, passes that both have)."""
    pairs = [(result["paths"][path][direction]["layer_ms"]["median"], torch[skew_of(result)[0]][direction]["layer_ms"]["median"])
             for result in results for direction in PASSES
             if not skew_of(result)[1] and path in result["paths"] and direction in torch.get(skew_of(result)[0], {})]
    return sum(own < other for own, other in pairs), len(pairs)


def make_text(results, torch, about_torch):
    first = results[0]
    machine, yardsticks = first["machine"], first["yardsticks"]
    link = yardsticks["link_bytes_per_ms"]["median"]
    lines = [
        f"{machine['devices'][0].get('name')} x {len(machine['devices'])}, {first['shape']['num_ranks']} ranks, driver {machine['driver']}, power limit"
        f" {machine['power_limit_watts']:.0f} W, SM {yardsticks['sm_mhz']['median']:.0f} MHz under the dense products, copy"
        f" {yardsticks['copy_bytes_per_ms']['median'] * 1e-6:.0f} GB/s" + (f", link {link * 1e-6:.0f} GB/s each way" if link > 0 else "") +
        f"; {first['shape']['tokens']} tokens a GPU, {first['num_repeats']} runs after {first['num_warmups']}, x"
        f" published by the pass, fp32 gradients added, commit {first['commit'][:12]}.",
    ]
    if about_torch:
        about = about_torch["machine"]
        lines[0] += f" Baseline: torch {about.get('torch')}, NCCL {about.get('nccl')}, {about_torch['peer']}."
    lines += [""] + table(["shape", "pass", "path", "ms", "TFLOP/s a GPU", "share of dense", "times floor", "times stages' floors",
                           "NCCL + PyTorch, ms", "times faster"], layer_rows(results, torch))
    for path in ("staged", "fused"):
        faster, all_passes = count_faster(results, torch, path)
        if all_passes > 0:
            lines += ["", f"{path}: faster than NCCL + PyTorch in {faster} of {all_passes} passes."]
    zero_copy = zero_copy_rows(results)
    if zero_copy:
        lines += ["", "Forward with x handed in zero-copy, in turn with the passes above:", ""]
        lines += table(["shape", "path", "ms", "TFLOP/s a GPU", "share of dense", "of the pass that publishes x"], zero_copy)
    skewed = skew_rows(results)
    if skewed:
        lines += ["", "Skewed routing beside a balanced run in which every rank owns as many rows as the busiest one here:", ""]
        lines += table(["shape", "skew", "pass", "path", "busiest / mean rows", "ms", "balanced: tokens", "ms", "skewed / balanced"], skewed)
    stages = [cells for cells in stage_rows(results) if cells[2]]
    if stages:
        lines += ["", "Stages of the staged path, ms (times their floors):", ""] + table(["shape", "pass", "stages"], stages)
    return lines


def put_into(path, lines, begin=BEGIN, end=END):
    """The lines take the place of what stands between two lines of a page."""
    try:
        with open(path, encoding="utf-8") as file:
            page = file.read()
    except OSError as error:
        sys.exit(f"{path}: cannot be read: {error.strerror}")
    if page.count(begin) != 1 or page.count(end) != 1:
        sys.exit(f"{path}: must have the lines '{begin}' and '{end}', once each")
    before, rest = page.split(begin)
    write(path, before + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--merge", help="file for all results as one list")
    parser.add_argument("--torch", help="results of torch_nccl.py")
    parser.add_argument("--docs", help="page to put the tables into")
    parser.add_argument("results", nargs="*")
    args = parser.parse_args()
    results = read_results(args.results)
    if not results:
        sys.exit("no results of mok bench")
    about_torch = read(args.torch) if args.torch and os.path.exists(args.torch) else None
    torch = {result["shape"]["name"]: result for result in about_torch["results"]} if about_torch else {}
    if args.merge:
        write(args.merge, "[\n" + ",\n".join(json.dumps(shorten(result)) for result in results) + "\n]\n")
    lines = make_text(results, torch, about_torch)
    if args.docs:
        put_into(args.docs, lines)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
