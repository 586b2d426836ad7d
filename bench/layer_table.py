#!/usr/bin/env python3
"""Results of `mok bench`, one JSON file a shape, as one table, with the baseline of torch_nccl.py beside them; and as one JSON file.

usage: layer_table.py [--merge FILE] [--torch FILE] RESULT...
Times: medians [least most] in ms; share = dense / layer; floor = layer / its floor; stages = layer / sum of its stages' floors.
"""
import argparse
import json
import os


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def span(spread):
    return f"{spread['median']:.3f} [{spread['least']:.3f} {spread['most']:.3f}]"


def torch_results(path):
    """By shape's name."""
    if not path or not os.path.exists(path):
        return {}
    return {result["shape"]["name"]: result for result in read(path)["results"]}


def print_layers(results, torch):
    print(f"{'shape':22s} {'pass':8s} {'path':6s} {'ms':26s} {'TF/s':>6s} {'dense':>8s} {'share':>6s} {'floor':>6s} {'stages':>6s}"
          f"  {'torch ms':26s} {'TF/s':>6s} {'torch/mok':>9s}")
    for result in results:
        name = result["shape"]["name"]
        for direction in ("forward", "backward"):
            for path, passes in result["paths"].items():
                part = passes[direction]
                line = (f"{name:22s} {direction:8s} {path:6s} {span(part['layer_ms']):26s} {part['tflops_per_gpu']:6.0f}"
                        f" {result['yardsticks'][f'dense_{direction}_ms']['median']:8.3f} {part['dense_over_layer']['median']:6.3f}"
                        f" {part['layer_over_floor']['median']:6.3f} {part['layer_over_stage_floors']['median']:6.3f}")
                other = torch.get(name, {}).get(direction)
                if other:
                    line += (f"  {span(other['layer_ms']):26s} {other['tflops_per_gpu']:6.0f}"
                             f" {other['layer_ms']['median'] / part['layer_ms']['median']:9.2f}")
                print(line)


def print_stages(results):
    print("\nstages, ms (times their floors)")
    for result in results:
        for direction in ("forward", "backward"):
            parts = [f"{stage['stage']} {stage['ms']['median']:.3f} ({stage['over_floor']['median']:.2f})"
                     for stage in result["stages"] if stage["pass"] == direction]
            print(f"{result['shape']['name']:22s} {direction:8s} " + ", ".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--merge")
    parser.add_argument("--torch")
    parser.add_argument("results", nargs="*")
    args = parser.parse_args()
    results = [read(path) for path in args.results if os.path.exists(path)]
    if not results:
        print("no results of mok bench")
        raise SystemExit(1)
    if args.merge:
        with open(args.merge, "w", encoding="utf-8") as file:
            json.dump(results, file)
    print_layers(results, torch_results(args.torch))
    print_stages(results)
    first = results[0]
    devices, machine, yardsticks = first["machine"]["devices"], first["machine"], first["yardsticks"]
    print(f"\n{devices[0].get('name')} x {len(devices)}, {first['shape']['num_ranks']} ranks, driver {machine['driver']},"
          f" SM {yardsticks['sm_mhz']['median']:.0f} MHz under load, copy {yardsticks['copy_bytes_per_ms']['median'] * 1e-6:.0f} GB/s,"
          f" commit {first['commit']}")


if __name__ == "__main__":
    main()
