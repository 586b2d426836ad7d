#!/usr/bin/env python3
"""Shapes that nobody chose: drawn by a seed, for bench/sweep/sweep.sh, which asks whether the automatic choice is right on shapes that it was not fitted to.

usage: draw_shapes.py SEED [COUNT]

Prints COUNT (3) shapes as "E:K:H:I:Is", one a line: experts, top K, hidden, intermediate, width of the shared expert (0 = none, or I). E from 16 to 256 and
H, I from 1,024 and 256 up by their logarithm, K from 2 to 10; H and I multiples of 64. A draw counts when
  a GPU of two has room:     weights of its experts at most 24 GB in bf16 (their fp32 gradients are twice that)
  a pass takes 1 to 15 ms:   K * H * (I + Is / K) between 1e7 and 1.7e8, at 8,192 tokens
The same seed gives the same shapes everywhere: numbers come from splitmix64.
"""
import math
import sys

MASK = (1 << 64) - 1


class Draws:
    def __init__(self, seed):
        self.state = seed & MASK

    def unit(self):
        """The next number in [0, 1)."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 11) / (1 << 53)

    def log_multiple(self, least, most, of):
        """A multiple of `of` in [least, most], evenly by its logarithm."""
        value = least * math.exp(self.unit() * math.log(most / least))
        return min(max(round(value / of) * of, least), most)


def draw(draws):
    while True:
        experts = draws.log_multiple(16, 256, 2)
        top_k = 2 + int(draws.unit() * 9)
        hidden = draws.log_multiple(1024, 8192, 64)
        inter = draws.log_multiple(256, 16384, 64)
        shared = inter if draws.unit() < 0.5 else 0
        weight_bytes = experts / 2 * 3 * hidden * inter * 2
        work = hidden * (top_k * inter + shared)
        if weight_bytes <= 24e9 and 1e7 <= work <= 1.7e8:
            return experts, top_k, hidden, inter, shared


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    for name, text in zip(("SEED", "COUNT"), sys.argv[1:]):
        if not text.isdecimal():
            sys.exit(f"draw_shapes.py: {name} is '{text}': must be a whole number")
    draws = Draws(int(sys.argv[1]))
    for _ in range(int(sys.argv[2]) if len(sys.argv) == 3 else 3):
        print(":".join(str(part) for part in draw(draws)))


if __name__ == "__main__":
    main()
