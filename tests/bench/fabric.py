#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fabric.py BUILD_DIR: weft over libfabric's providers beside fi_pingpong on the same provider, on this machine.

All measurements are taken in turn, several times over, each with both processes on cores of their own; the median
counts. fi_pingpong tells means only, so that means are compared. A ping-pong of 1 MiB is one message at a time each way,
for weft as well. Beside them stand instructions, system calls and allocations for each operation over `net`, in which
libfabric's own part is counted too.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/fabric.json.
"""
import argparse
import tempfile
from pathlib import Path

import rows
from net import (COSTS, MIB, Machine, available, cost, gigabytes, libfabric, median_of, print_costs, rows_of_costs,
                 say_if_busy, take_turns)
from net import weft as weft_perf
from rows import Row

# As weft names them, and as fi_pingpong does. sockets has threads of its own, which stand still beside what spins.
PROVIDERS = {"net": "net", "tcp": "tcp;ofi_rxm"}
SIZES = {"64": (64, 10000), "1M": (MIB, 500)}  # bytes, and how often fi_pingpong goes to and fro


def weft(machine, provider, operation, quantity, size, **how):
    return weft_perf(machine, operation, quantity, size, device=f"fabric:{provider}", **how)


def measurements():
    found = {}
    for name, whole in PROVIDERS.items():
        for size, (count, times) in SIZES.items():
            found[f"libfabric_{name}_{size}"] = (
                f"fi_pingpong -p {whole} -e rdm",
                lambda m, whole=whole, count=count, times=times: libfabric(m, count, times, whole, "rdm"))
            found[f"weft_{name}_{size}"] = (
                f"weft send over fabric:{name}", lambda m, name=name, size=size: weft(m, name, "send", "latency", size))
        found[f"weft_{name}_write"] = (f"weft write over fabric:{name}, 16 in flight",
                                       lambda m, name=name: weft(m, name, "write", "bandwidth", "1M", depth=16))
    return found


MEASUREMENTS = measurements()


def comparisons(median):
    found = []
    for name in PROVIDERS:
        ours, its = median[f"weft_{name}_64"], median.get(f"libfabric_{name}_64")
        found.append(Row(f"64 B half round trip: {MEASUREMENTS[f'weft_{name}_64'][0]}", ours["mean_us"], "us",
                         its and its["mean_us"], its and MEASUREMENTS[f"libfabric_{name}_64"][0] or "",
                         at_most=1.1 if its else None))
        ours, its = median[f"weft_{name}_1M"], median.get(f"libfabric_{name}_1M")
        found.append(Row(f"1 MiB half round trip: {MEASUREMENTS[f'weft_{name}_1M'][0]}", MIB / ours["mean_us"] / 1e3, "GB/s",
                         its and MIB / its["mean_us"] / 1e3, its and MEASUREMENTS[f"libfabric_{name}_1M"][0] or "",
                         at_least=0.95 if its else None))
        found.append(Row(f"1 MiB: {MEASUREMENTS[f'weft_{name}_write'][0]}", gigabytes(median[f"weft_{name}_write"], MIB),
                         "GB/s"))
    return found


def main():
    parser = argparse.ArgumentParser(description="weft over libfabric's providers beside fi_pingpong")
    parser.add_argument("build", type=Path)
    parser.add_argument("--repetitions", type=int, default=5, help="of every measurement (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1, help="that one takes (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 repetitions of 0.3 seconds")
    parser.add_argument("--no-costs", action="store_true", help="leave out instructions, system calls and allocations")
    options = parser.parse_args()
    if options.quick:
        options.repetitions, options.seconds = 3, 0.3
    machine = Machine(options.build.resolve(), options.seconds)
    load = say_if_busy(machine)

    runs = take_turns(machine, options.repetitions, available(MEASUREMENTS))
    median = {name: median_of(runs[name]) for name in runs}
    found = comparisons(median)
    costs = {}
    if not options.no_costs:
        with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
            program = machine.build / "tests/bench/net_cost"
            costs = {operation: cost(program, operation, Path(directory), device="fabric:net") for operation in COSTS}
        found += rows_of_costs("fabric:net", costs, {})
        print_costs(costs)
    print("\n" + "\n".join(rows.table(found)))

    path = options.build / "bench/fabric.json"
    rows.write(path, found, cores=len(machine.cores), load_before=load, seconds=options.seconds, costs=costs, medians=median,
               runs=runs)
    print(f"\n{rows.count(found)}; all runs in {path}")


if __name__ == "__main__":
    main()
