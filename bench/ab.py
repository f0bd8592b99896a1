#!/usr/bin/env python3
"""Compares two builds of the engine's benchmark, in turn, so that both see the same machine.

    bench/ab.py OLD NEW [--rounds N] [--experiment alone]

OLD and NEW are programs made by `cargo bench --package ucrypt-engine --bench engine --no-run`, of two
commits. Each round runs both, in changing order. Prints, for each row of the experiment's table, the
least time of both and their ratio, which other programs on the machine disturb least, and the median of
the rounds' ratios, with the quartiles.
"""

import argparse
import statistics
import subprocess


def rows(program, experiment):
    """Nanoseconds of the engine, by request and sector size."""
    text = subprocess.run(
        [program, experiment], check=True, capture_output=True, text=True
    ).stdout
    table = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in text.splitlines()]
    head = next(row for row in table if "engine ns" in row)
    at = head.index("engine ns")
    body = [row for row in table if len(row) == len(head) and row[at].isdigit()]
    return {(row[0], row[1]): int(row[at]) for row in body}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--experiment", default="alone")
    args = parser.parse_args()
    old, new = [], []
    for number in range(args.rounds):
        order = [(args.old, old), (args.new, new)]
        for program, results in order if number % 2 == 0 else reversed(order):
            results.append(rows(program, args.experiment))
    print("| request | sector | least old ns | least new ns | new/old | median of rounds | quartiles |")
    print("|---|---:|---:|---:|---:|---:|---|")
    least, medians = [], []
    for key in old[0]:
        pairs = [(one[key], two[key]) for one, two in zip(old, new)]
        ratio = sorted(two / one for one, two in pairs)
        low, middle, high = statistics.quantiles(ratio, n=4)
        before, after = (min(side) for side in zip(*pairs))
        least.append(after / before)
        medians.append(middle)
        print(
            f"| {key[0]} | {key[1]} | {before} | {after} | {after / before:.3f} | {middle:.3f} "
            f"| {low:.3f} to {high:.3f} |"
        )
    print(f"\nall rows: {statistics.median(least):.4f} of the least times, ", end="")
    print(f"{statistics.median(medians):.4f} of the rounds' medians")


if __name__ == "__main__":
    main()
