#!/usr/bin/env python3
"""The layer on several counts of GPUs as tables: results of bench/scale/scale.sh.

usage: scale_table.py --add TOKENS LAYER.json --to SCALE.json      adds results of bench/layer.sh, run with TOKENS tokens a GPU, to the file of a count
       scale_table.py [--sweep SWEEP.json]... [--docs FILE.md] SCALE.json...

SCALE: a list of results of `mok bench --json`, each with its title (bench/layer_table.py) and "tokens_asked": what the run and its balanced pair belong to.
--docs puts the tables between the two lines that begin with <!-- scale tables in a page, instead of printing them.

TFLOP/s are of a GPU: at constant tokens a GPU, those of more GPUs over those of two are how well the layer scales. Link floor: bytes of rows that the
busiest GPU must take and give in one direction over the rate that all GPUs reach when each copies to its neighbour.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "sweep"))
from layer_table import PASSES, put_into, read_results, shorten, skew_of, span, table, write
from sweep_plot import read_sweeps, table_lines, without_places

MARKS = ("<!-- scale tables: written by bench/scale/scale_table.py -->", "<!-- scale tables: end -->")
PATH = "fused"
VALUE_BYTES = 2
# Published for H200s of one host, TFLOP/s a GPU, and what is to be reached: shape, pass, GPUs, published, asked for.
PUBLISHED = (
    ("qwen3-30b", "forward", 4, "274", None),
    ("qwen3-30b", "forward", 8, "238", 330),
    ("qwen3-30b", "backward", 4, "207", None),
    ("qwen3-30b", "backward", 8, "211", 300),
    ("mixtral-8x7b", "forward", 8, "533", 600),
    ("mixtral-8x7b", "backward", 8, "428 to 431", 540),
)


def count_of(result):
    return len(result["machine"]["devices"])


# ---- files -------------------------------------------------------------------------------------------------------------------


def shorten_runs(result):
    """Six digits; of the single runs only the layer's times."""
    short = shorten(result, keeps_runs=False)
    for path, passes in result["paths"].items():
        for direction, part in passes.items():
            short["paths"][path][direction]["layer_ms"] = shorten(part["layer_ms"])
    return without_places(short)


def add_results(tokens, layer, path):
    results = read_results([path])
    added = [dict(result, tokens_asked=tokens) for result in read_results([layer])]
    titles = {result["title"] for result in added}
    kept = [result for result in results if result["tokens_asked"] != tokens or result["title"] not in titles]
    write(path, "[\n" + ",\n".join(json.dumps(shorten_runs(result)) for result in kept + added) + "\n]\n")


# ---- tables ------------------------------------------------------------------------------------------------------------------


def index(results):
    """{(shape, skew, is the balanced pair, tokens): {GPUs: result}}, in the order of the files."""
    found = {}
    for result in results:
        found.setdefault((*skew_of(result), result["tokens_asked"]), {})[count_of(result)] = result
    return found


def layer_of(result, direction):
    return result["paths"][PATH][direction]


def link_floor_ms(result):
    """0 with one GPU."""
    rate = result["yardsticks"]["link_bytes_per_ms"]["median"]
    most = max(a + b for a, b in zip(result["rows_from_other_gpus"], result["rows_to_other_gpus"]))
    return most * VALUE_BYTES * result["shape"]["hidden"] / rate if rate > 0 else 0.0


def balanced(found):
    return [(shape, tokens, by_count) for (shape, skew, _, tokens), by_count in found.items() if not skew]


def scaling_rows(found, counts):
    rows = []
    for shape, tokens, by_count in balanced(found):
        for direction in PASSES:
            parts = {count: layer_of(result, direction) for count, result in by_count.items()}
            cells = [f"{parts[count]['tflops_per_gpu']:.0f} ({parts[count]['layer_ms']['median']:.3f})" if count in parts else "-" for count in counts]
            against = [f"{parts[count]['tflops_per_gpu'] / parts[2]['tflops_per_gpu']:.2f}" if count in parts and 2 in parts else "-"
                       for count in counts if count > 2]
            rows.append([shape, tokens, direction] + cells + against)
    return rows


def floor_rows(found, counts):
    """Of more than two GPUs, or of what there is with a link."""
    rows, least = [], 4 if counts[-1] >= 4 else 2
    for shape, tokens, by_count in balanced(found):
        for count in (count for count in counts if count >= least and count in by_count):
            result = by_count[count]
            floor = link_floor_ms(result)
            for direction in PASSES:
                part = layer_of(result, direction)
                ms = part["layer_ms"]["median"]
                schedule = part.get("schedule_ms")
                staged = result["paths"].get("staged")
                rows.append([shape, tokens, count, direction, span(part["layer_ms"]), f"{part['dense_over_layer']['median']:.3f}", f"{floor:.3f}",
                             f"{ms / floor:.2f}", f"{part['layer_over_floor']['median']:.2f}",
                             f"{1000 * schedule['median']:.0f} ({100 * schedule['median'] / ms:.1f}%)" if schedule else "-",
                             f"{staged[direction]['layer_ms']['median'] / ms:.2f}" if staged else "-"])
    return rows


def skew_rows(found):
    rows = []
    for (shape, skew, is_pair, tokens), by_count in found.items():
        pairs = found.get((shape, skew, True, tokens), {})
        for count in sorted(set(by_count) & set(pairs)) if skew and not is_pair else ():
            result, pair = by_count[count], pairs[count]
            for direction in PASSES:
                ms, pair_ms = layer_of(result, direction)["layer_ms"], layer_of(pair, direction)["layer_ms"]
                floor, pair_floor = link_floor_ms(result), link_floor_ms(pair)
                rows.append([shape, skew, tokens, count, direction, f"{max(result['rows']) / (sum(result['rows']) / len(result['rows'])):.2f}", span(ms),
                             f"{floor:.3f}", span(pair_ms), f"{pair_floor:.3f}", f"{ms['median'] / pair_ms['median']:.3f}"])
    return rows


def published_rows(found):
    rows = []
    for shape, direction, count, published, asked in PUBLISHED:
        result = found.get((shape, "", False, 8192), {}).get(count)
        if result:
            rows.append([shape, direction, count, f"{layer_of(result, direction)['tflops_per_gpu']:.0f}", published, asked or "-"])
    return rows


def about(result):
    machine, link = result["machine"], result["yardsticks"]["link_bytes_per_ms"]["median"]
    return (f"{count_of(result)} x {machine['devices'][0]['name']}: {result['peer']}, driver {machine['driver']}, power limit"
            f" {machine['power_limit_watts']:.0f} W, SM {result['yardsticks']['sm_mhz']['median']:.0f} MHz under the dense products"
            + (f", link {link * 1e-6:.0f} GB/s each way" if link > 0 else "")
            + f"; {result['num_repeats']} runs after {result['num_warmups']}, commit {result['commit'][:12]}.")


def make_text(results, sweeps):
    found, counts = index(results), sorted({count_of(result) for result in results})
    firsts = [next(result for result in results if count_of(result) == count) for count in counts]
    lines = [about(result) for result in firsts]
    lines = [line for pair in zip(lines, [""] * len(lines)) for line in pair]
    lines += [f"TFLOP/s a GPU (ms), {PATH} path, x published by the pass, fp32 gradients added; against two GPUs: TFLOP/s over those of two.", ""]
    lines += table(["shape", "tokens a GPU", "pass"] + [f"{count} GPU" + "s" * (count > 1) for count in counts]
                   + [f"{count} against 2" for count in counts if count > 2], scaling_rows(found, counts))
    blocks = [("Beside what has been published for H200s of one host, TFLOP/s a GPU, 8,192 tokens each:",
               ["shape", "pass", "GPUs", "measured", "published", "asked for"], published_rows(found)),
              ("Against floors. Link floor: the rows that cross the link in one direction, of the busiest GPU, at the rate of the copy engines.",
               ["shape", "tokens a GPU", "GPUs", "pass", "ms", "share of dense", "link floor, ms", "times link floor", "times largest floor", "schedule, us",
                "staged / fused"], floor_rows(found, counts)),
              ("Skewed routing beside a balanced run in which every rank owns as many rows as the busiest one here:",
               ["shape", "skew", "tokens a GPU", "GPUs", "pass", "busiest / mean rows", "ms", "link floor, ms", "balanced, ms", "its link floor, ms",
                "skewed / balanced"], skew_rows(found))]
    for caption, header, rows in blocks:
        if rows:
            lines += ["", caption, ""] + table(header, rows)
    for sweep in sweeps:
        lines += ["", f"The automatic choice against a sweep, {sweep[0]['pass']}:", ""] + table_lines(sweep)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", nargs=2, metavar=("TOKENS", "LAYER"), help="results to add to the file of --to")
    parser.add_argument("--to", help="file of a count of GPUs")
    parser.add_argument("--sweep", action="append", default=[], help="file of bench/sweep/sweep.sh")
    parser.add_argument("--docs", help="page to put the tables into")
    parser.add_argument("results", nargs="*")
    given = parser.parse_args()
    if (given.add is None) != (given.to is None) or (given.add is None) == (not given.results):
        parser.error("either --add and --to, or results")
    if given.add:
        add_results(int(given.add[0]), given.add[1], given.to)
        return
    results = read_results(given.results)
    if not results:
        sys.exit("no results of mok bench")
    lines = make_text(results, [read_sweeps([path]) for path in given.sweep])
    if given.docs:
        put_into(given.docs, lines, *MARKS)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
