#!/usr/bin/env python3
"""bench/scale without a GPU: its script run to the end on eight GPUs that tests/tables/bench_fake.py stands for, and every figure of its tables.

usage: test_scale.py SOURCE_DIR
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else ".")
sys.path[:0] = [os.path.join(SOURCE, "bench", "scale"), os.path.join(SOURCE, "tests", "tables")]
import bench_fake
import scale_table


def row_of(text, *cells):
    """The cells of the one line of a table that begins with these."""
    start = "| " + " | ".join(cells) + " |"
    lines = [line for line in text.splitlines() if line.startswith(start)]
    assert len(lines) == 1, (start, lines, text)
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


class Script(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for name in ("mok", "nvidia-smi"):
            path = os.path.join(self.folder.name, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec "{sys.executable}" "{SOURCE}/tests/tables/bench_fake.py" {name} "$@"\n')
            os.chmod(path, 0o755)
        self.out = os.path.join(self.folder.name, "out")

    def run_scale(self, *steps, **more):
        environment = {key: value for key, value in os.environ.items() if key not in ("CUDA_VISIBLE_DEVICES", "COUNTS", "SHAPES", "SKEWS", "TOKENS")}
        environment.update(PATH=self.folder.name + ":" + os.environ["PATH"], MOK=os.path.join(self.folder.name, "mok"), OUT=self.out, COMMIT="abc",
                           SEED="", **more)
        done = subprocess.run(["bash", os.path.join(SOURCE, "bench/scale/scale.sh"), *steps], env=environment, capture_output=True, text=True,
                              timeout=600, check=False)
        return done.returncode, done.stdout + done.stderr

    def read(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as file:
            return json.load(file)

    def test_all_counts(self):
        code, said = self.run_scale("layer", "sweep", SHAPES="qwen3-30b,mixtral-8x7b", SKEWS="qwen3-30b:zipf")
        self.assertEqual(code, 0, said)
        for count in (1, 2, 4, 8):
            results = self.read(f"scale_h200x{count}.json")
            self.assertEqual({len(result["machine"]["devices"]) for result in results}, {count})
            titles = sorted((result["tokens_asked"], result["title"]) for result in results)
            each = ["mixtral-8x7b", "qwen3-30b", "qwen3-30b@zipf", "qwen3-30b@zipf-balanced"]
            self.assertEqual(titles, [(tokens, title) for tokens in (2048, 8192) for title in each])
            self.assertNotIn("all", results[0]["yardsticks"]["sm_mhz"])
            self.assertEqual(len(results[0]["paths"]["fused"]["forward"]["layer_ms"]["all"]), 3)
            self.assertNotIn("/tmp", json.dumps(results))
        self.assertEqual(row_of(said, "qwen3-30b", "8192", "forward", "100 (1.000)"),
                         ["qwen3-30b", "8192", "forward", "100 (1.000)", "91 (1.100)", "83 (1.200)", "77 (1.300)", "0.92", "0.85"])
        floor = 2 * 8192 * 8 * 7 // 8 * 2 * 2048 / bench_fake.LINK_BYTES_PER_MS
        self.assertEqual(row_of(said, "qwen3-30b", "8192", "8", "forward")[4:],
                         ["1.300 [1.300 1.300]", "0.500", f"{floor:.3f}", f"{1.3 / floor:.2f}", "1.25", "30 (2.3%)", "1.50"])
        floor = 2 * (2 * 2048 * 8 * 3 // 4) * 2 * 2048 / bench_fake.LINK_BYTES_PER_MS
        self.assertEqual(row_of(said, "qwen3-30b", "zipf", "2048", "4", "forward")[5:],
                         ["1.60", "0.450 [0.450 0.450]", f"{floor:.3f}", "0.600 [0.600 0.600]", f"{floor:.3f}", "0.750"])
        self.assertEqual(row_of(said, "qwen3-30b", "backward", "8"), ["qwen3-30b", "backward", "8", "77", "211", "300"])
        self.assertEqual(row_of(said, "mixtral-8x7b", "forward", "8"), ["mixtral-8x7b", "forward", "8", "77", "533", "600"])
        for direction in ("forward", "backward"):
            self.assertEqual(row_of(said, "mixtral-8x7b", direction, "1.0000")[3:6], ["0.9900", "minibatch=2048", "+1.0%"])
            self.assertEqual(len(self.read(f"sweep_{direction}_h200x8.json")), 2)

    def test_beside(self):
        code, said = self.run_scale("layer", SHAPES="qwen3-30b", BESIDE="1", TOKENS="8192")
        self.assertEqual(code, 0, said)
        self.assertIn("layer on 2 GPUs from 4 on, beside others: ok", said)
        self.assertIn("layer on 1 GPUs from 6 on, beside others: ok", said)
        self.assertEqual(row_of(said, "qwen3-30b", "8192", "forward", "100 (1.000)")[-1], "0.85")

    def test_default_lists(self):
        code, said = self.run_scale("layer", COUNTS="4")
        self.assertEqual(code, 0, said)
        titles = {(result["tokens_asked"], result["title"]) for result in self.read("scale_h200x4.json")}
        self.assertTrue({(8192, "kimi-k2"), (2048, "deepseek-v4-pro"), (8192, "real64@real-balanced"), (2048, "qwen3-30b@hot")} <= titles)
        self.assertEqual(len(titles), 10 + 2 * 8 + 10 + 2 * 2)

    def test_failure_is_said_and_the_rest_stays(self):
        code, said = self.run_scale("layer", SHAPES="mixtral-8x7b,qwen3-30b", COUNTS="2", TOKENS="8192", FAKE_FAILS="qwen3-30b")
        self.assertEqual(code, 1)
        self.assertIn("this shape fails", said)
        self.assertIn("layer on 2 GPUs: FAILED", said)
        self.assertEqual([result["title"] for result in self.read("scale_h200x2.json")], ["mixtral-8x7b"])

    def test_wrong_words(self):
        self.assertEqual(self.run_scale("layers")[0], 2)
        code, said = self.run_scale("tables", COUNTS="16 8")
        self.assertIn("left out: 16 GPUs, the machine has 8", said)
        self.assertEqual(code, 0, said)


class Tables(unittest.TestCase):
    def test_add_replaces_what_was_run_again(self):
        with tempfile.TemporaryDirectory() as folder:
            layer, scale = os.path.join(folder, "layer.json"), os.path.join(folder, "scale.json")
            for tokens, num_repeats in ((8192, 3), (2048, 3), (8192, 30)):
                with open(layer, "w", encoding="utf-8") as file:
                    json.dump([dict(bench_fake.make_layer("qwen3-30b", tokens, 2, "balanced"), title="qwen3-30b", num_repeats=num_repeats)], file)
                scale_table.add_results(tokens, layer, scale)
            with open(scale, encoding="utf-8") as file:
                self.assertEqual(sorted((result["tokens_asked"], result["num_repeats"]) for result in json.load(file)), [(2048, 3), (8192, 30)])

    def test_the_page_has_the_marks(self):
        with open(os.path.join(SOURCE, "docs", "performance.md"), encoding="utf-8") as file:
            page = file.read()
        for mark in scale_table.MARKS:
            self.assertEqual(page.count(mark), 1)

    def test_without_two_gpus(self):
        result = dict(bench_fake.make_layer("qwen3-30b", 8192, 4, "balanced"), title="qwen3-30b", tokens_asked=8192)
        self.assertEqual(row_of("\n".join(scale_table.make_text([result], [])), "qwen3-30b", "8192", "forward", "83 (1.200)")[-1], "-")


if __name__ == "__main__":
    unittest.main()
