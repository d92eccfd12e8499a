#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fabric.py BUILD_DIR: weft over libfabric's providers beside fi_pingpong on the same provider, on this machine.

All measurements are taken in turn, several times over, each with both processes on cores of their own; the median
counts. fi_pingpong tells means only, so that means are compared. A ping-pong of 1 MiB is one message at a time each way,
for weft as well. Beside them stand instructions, system calls and allocations for each operation over `net`, in which
libfabric's own part is counted too.

Prints a table, and writes it with all repetitions to BUILD_DIR/bench/fabric.json.
"""
from net import MIB, compare, gigabytes, libfabric, rows_of_costs
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
    compare("fabric", "weft over libfabric's providers beside fi_pingpong", "fabric:net", MEASUREMENTS, comparisons,
            lambda costs: rows_of_costs("fabric:net", costs, {}))


if __name__ == "__main__":
    main()
