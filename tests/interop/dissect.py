#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dissect.py BUILD_DIR [--only WORD] [--keep FOLDER]: what an independent dissector makes of what weft says.

Runs the conformance suite, and then each hostile test by itself, in a network of its own, captures the loopback with
tcpdump(8) and has tshark(1) dissect it. The conformance suite must come out clean:

- every byte that TCP carried lies in an MPA frame or an FPDU that tshark has recognised,
- every CRC is right where one was agreed on,
- no frame is malformed, none draws an error from the dissectors of MPA, DDP and RDMAP.

Of the hostile tests, exactly those frames are flagged that were meant to be: see EXPECTED. Tests whose names end in the
code of a Terminate have it on the wire, and it reads the same there.

tshark knows RFC 5044 but not RFC 6581, so that it notes "Rev is not one" on every set-up frame of revision 2; that and
other mere notes are not looked at. It does not check the order of messages, keys or bounds; the tests themselves do.
"""
import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
NOT_CAPTURED = {
    "transports/cost.",  # what other suites do as well, ten thousand times over: no capture keeps up with it
    "transports/cut_link.",  # in a network of its own, elsewhere
    "transports/destruction.",  # thousands of connections that say nothing new: no capture keeps up with them either
}
LARGEST_FPDU = 2 + 64768 + 2 + 4
# Streams are told by their set-up frames and not by their ports, which are anybody's; two processors put packets on the
# loopback in any order; what weft sends inside RDMAP is no RPC and no SMB, though their heuristics take it for that; and
# a segment may have hundreds of FPDUs, each of which is several levels of what tshark takes for a tree.
TSHARK = ["tshark", "-n", "-o", "tcp.try_heuristic_first:TRUE", "-o", "tcp.reassemble_out_of_order:TRUE",
          "-o", "gui.max_tree_depth:100000", "--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]
FIELDS = ["tcp.stream", "tcp.srcport", "tcp.seq", "tcp.len", "tcp.flags.reset", "iwarp_mpa.pdlength",
          "iwarp_mpa.crc_flag", "iwarp_mpa.ulpdulength", "iwarp_rdma.opcode", "_ws.malformed", "_ws.expert.severity"]
# Where the dissector shows a Terminate's layer, type and code, which it names anew for each layer.
TERMINATE = [["iwarp_rdma.term_layer"],
             ["iwarp_rdma.term_etype_rdma", "iwarp_rdma.term_etype_ddp", "iwarp_rdma.term_etype_llp",
              "iwarp_rdma.term_etype"],
             ["iwarp_rdma.term_errcode_rdma", "iwarp_rdma.term_errcode_ddp_tagged",
              "iwarp_rdma.term_errcode_ddp_untagged", "iwarp_rdma.term_errcode_llp", "iwarp_rdma.term_errcode"]]
FIELDS += sum(TERMINATE, [])
ERROR = 0x00800000  # severity of Wireshark's expert information
OPCODES = ["Write", "Read Request", "Read Response", "Send", "Send with Invalidate", "Send with Solicited Event",
           "Send with Solicited Event and Invalidate", "Terminate", "Immediate Data",
           "Immediate Data with Solicited Event", "Atomic Request", "Atomic Response"]

# What of a hostile test is flagged, by the last part of its name; of all others nothing is.
EXPECTED = {
    "hostile.garbage_instead_of_frames": {"undissected": 1},
    "wrong_crc_2_0_02": {"bad CRC": 1},
    "fpdu_shorter_than_a_header_2_0_03": {"malformed": 1},
    "fpdu_longer_than_any_2_0_03": {"undissected": 1},
    "short_read_request_0_2_ff": {"malformed": 1},
    # Our Terminate, and rightly so: tshark 4.0 takes it for granted that an error of RDMAP is about an untagged segment,
    # but RFC 5040 figure 10 has any message cause one, and its section 4.8 says that a tagged one's header is shorter.
    "read_response_to_no_read_0_2_06": {"malformed": 1},
}


class Finding(Exception):
    """What is wrong, in words."""


def run_captured(program, test_filter, to, buffer_kib):
    """Runs a GoogleTest program with only the loopback of a fresh network, and captures that."""
    script = """
        set -eu
        ip link set lo up
        tcpdump -i lo -s 0 -B "$4" -U -w "$1" 'tcp or udp port 9' 2>"$1.log" &
        sniffer=$!
        until grep -q 'listening on' "$1.log"; do kill -0 $sniffer; sleep 0.05; done
        status=0
        "$2" --gtest_filter="$3" --gtest_brief=1 >"$1.out" 2>&1 || status=$?
        # tcpdump forgets what the kernel still has for it when it is told to end: let it come to a last packet first.
        until tail -c 100 "$1" | grep -q 'the end of the capture'; do
          echo 'the end of the capture' >/dev/udp/127.0.0.1/9
          sleep 0.1
        done
        kill -INT $sniffer
        wait $sniffer || true
        exit $status
    """
    Path(f"{to}.log").write_text("")
    done = subprocess.run(["unshare", "--net", "bash", "-c", script, "_", to, program, test_filter,
                           str(buffer_kib)], check=False,
                          env={**os.environ, "GTEST_OUTPUT": ""})
    log = Path(f"{to}.log").read_text()
    if done.returncode != 0:
        raise Finding(f"{program.name} failed:\n{Path(f'{to}.out').read_text()}{log}")
    if "\n0 packets dropped by kernel" not in log:
        raise BufferError(log.strip().splitlines()[-1])


def capture(program, test_filter, to, buffer_kib=65536, attempts=4):
    """Like run_captured; a capture with holes says nothing, so it is made anew, with more room in the kernel."""
    for attempt in range(attempts):
        try:
            return run_captured(program, test_filter, to, buffer_kib << attempt)
        except BufferError as holes:
            if attempt + 1 == attempts:
                raise Finding(f"the capture of {test_filter} has holes each time: {holes}") from holes


class Direction:
    """What one end of a TCP connection has said."""

    def __init__(self):
        self.said = 0  # bytes, by their sequence numbers: what is sent again counts once
        self.dissected = 0
        self.fpdus = 0


class Dissection:
    """What tshark makes of one capture."""

    def __init__(self, pcap):
        self.directions = collections.defaultdict(Direction)
        self.opcodes = collections.Counter()
        self.flags = collections.Counter()  # what is wrong
        self.with_crc = set()  # streams
        self.reset = set()
        self.terminates = []  # (layer, type, code)
        self.cut = 0
        for row in rows(pcap):
            self.add(row)
        crcs = crc_verdicts(pcap)
        self.good_crcs = crcs["Good"]
        if crcs["Bad"]:
            self.flags["bad CRC"] = crcs["Bad"]
        self.check_coverage()

    def add(self, row):
        stream = row["tcp.stream"][0]
        direction = self.directions[stream, row["tcp.srcport"][0]]
        length = int(row["tcp.len"][0] or 0)
        if length:
            direction.said = max(direction.said, int(row["tcp.seq"][0]) - 1 + length)
        if row["tcp.flags.reset"][0] in ("1", "True"):
            self.reset.add(stream)
        if any(flag in ("1", "True") for flag in row["iwarp_mpa.crc_flag"]):
            self.with_crc.add(stream)
        direction.dissected += sum(20 + int(size) for size in row["iwarp_mpa.pdlength"])
        ulpdus = [int(size) for size in row["iwarp_mpa.ulpdulength"]]
        direction.dissected += sum((2 + size + 3) // 4 * 4 + 4 for size in ulpdus)
        direction.fpdus += len(ulpdus)
        self.opcodes.update(int(code, 0) for code in row["iwarp_rdma.opcode"])
        self.terminates += zip(*([int(value, 0) for name in names for value in row[name]] for names in TERMINATE))
        if row["_ws.malformed"]:
            self.flags["malformed"] += 1
        elif any(int(severity) >= ERROR for severity in row["_ws.expert.severity"]):
            self.flags["error"] += 1

    def check_coverage(self):
        for (stream, _), direction in self.directions.items():
            left = direction.said - direction.dissected
            if left == 0:
                continue
            if 0 < left < LARGEST_FPDU and stream in self.reset and direction.dissected:
                self.cut += 1  # an abort, in the middle of an FPDU
            elif direction.dissected == 0:
                self.flags["not MPA"] += 1
            else:
                self.flags["undissected"] += 1
        checked = sum(d.fpdus for (stream, _), d in self.directions.items() if stream in self.with_crc)
        if checked != self.good_crcs + self.flags["bad CRC"]:
            self.flags["without CRC"] = checked - self.good_crcs - self.flags["bad CRC"]

    @property
    def fpdus(self):
        return sum(direction.fpdus for direction in self.directions.values())


def tshark(pcap, *options):
    with subprocess.Popen([*TSHARK, "-r", pcap, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as process:
        yield from process.stdout
    if process.returncode != 0:
        raise Finding(f"tshark cannot read {pcap}")


def rows(pcap):
    options = [word for field in FIELDS for word in ("-e", field)]
    for line in tshark(pcap, "-T", "fields", "-E", "separator=;", "-E", "occurrence=a", *options):
        columns = [[value for value in column.split(",") if value] for column in line.rstrip("\n").split(";")]
        row = dict(zip(FIELDS, columns))
        if row["tcp.stream"]:
            yield {**row, **{name: row[name] or [""] for name in FIELDS[:5]}}


def crc_verdicts(pcap):
    verdicts = collections.Counter()
    for line in tshark(pcap, "-O", "iwarp_mpa", "-Y", "iwarp_mpa.crc_check"):
        for verdict in ("Good", "Bad"):
            verdicts[verdict] += line.count(f"({verdict} CRC32")
    return verdicts


def suites(program):
    """Suite -> its tests' full names."""
    listing = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    found, suite = collections.defaultdict(list), ""
    for line in listing.splitlines():
        name = line.split("#")[0].strip()
        if line.startswith(" "):
            found[suite].append(suite + name)
        elif name.endswith("."):  # other lines are what main() says first
            suite = name
    return found


def in_words(flags):
    return ", ".join(f"{count} {flag}" for flag, count in sorted(flags.items())) or "nothing"


def check_conformance(program, folder, only):
    opcodes, total = collections.Counter(), collections.Counter()
    wrong = []
    for suite in suites(program):
        if only not in suite or suite in NOT_CAPTURED:
            continue
        pcap = folder / f"{suite.rstrip('.').replace('/', '-')}.pcap"
        capture(program, f"{suite}*", pcap, buffer_kib=131072)
        seen = Dissection(pcap)
        opcodes.update(seen.opcodes)
        total.update(directions=len(seen.directions), fpdus=seen.fpdus, good=seen.good_crcs, cut=seen.cut)
        print(f"  {suite + '*':34} {len(seen.directions):5} directions {seen.fpdus:7} FPDUs {seen.good_crcs:7} good CRCs  "
              f"flagged: {in_words(seen.flags)}", flush=True)
        if seen.flags:
            wrong.append(f"{suite}*: {in_words(seen.flags)} ({pcap})")
        elif not seen.fpdus:
            wrong.append(f"{suite}*: tshark has recognised no FPDU ({pcap})")
        discard(pcap)
    print(f"conformance suite: {total['fpdus']} FPDUs in {total['directions']} directions ({total['cut']} ended by a reset "
          f"inside an FPDU), {total['good']} good CRCs")
    for code, count in sorted(opcodes.items()):
        print(f"  {count:7} {OPCODES[code] if code < len(OPCODES) else f'opcode {code}'}")
    return wrong


def check_hostile(program, folder, only):
    wrong, flagged, count, codes = [], 0, 0, 0
    tests = [name for suite, names in suites(program).items()
             if suite == "hostile." or "provoked" in suite for name in names]
    stale = EXPECTED.keys() - {name.split("/")[-1] for name in tests}
    if stale and not only:
        wrong.append(f"there is no such hostile test any more: {', '.join(sorted(stale))}")
    for name in tests:
        if only not in name:
            continue
        pcap = folder / f"{name.replace('/', '-')}.pcap"
        capture(program, name, pcap)
        seen, meant = Dissection(pcap), collections.Counter(EXPECTED.get(name.split("/")[-1], {}))
        count += 1
        flagged += sum(seen.flags.values())
        if seen.flags != meant:
            wrong.append(f"{name}: flagged {in_words(seen.flags)}, meant {in_words(meant)} ({pcap})")
        if provoked := re.search(r"_(\w)_(\w)_(\w\w)$", name):
            codes += 1
            if seen.terminates != [tuple(int(digits, 16) for digits in provoked.groups())]:
                wrong.append(f"{name}: the dissector reads the Terminates {seen.terminates} ({pcap})")
        discard(pcap)
    print(f"hostile tests: {flagged} flagged in {count} captures, {codes} provoked Terminates read")
    return wrong


keep = False


def discard(pcap):
    if keep:
        return
    for end in ("", ".log", ".out"):
        Path(f"{pcap}{end}").unlink()


def why_not():
    missing = [tool for tool in ("tshark", "tcpdump", "unshare", "ip") if shutil.which(tool) is None]
    if missing:
        return f"missing: {', '.join(missing)}"
    network = subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], check=False, capture_output=True)
    if network.returncode != 0:
        return "a network of one's own takes root: " + network.stderr.decode().strip()
    return None


def main():
    global keep
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--only", default="", help="suites and tests with this in their names")
    parser.add_argument("--keep", type=Path, help="leave the captures in this folder")
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return SKIPPED
    keep = options.keep is not None
    if keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weft-dissect-") as temporary:
        folder = options.keep or Path(temporary)
        folder.chmod(0o777)  # tcpdump gives up its rights
        try:
            wrong = check_conformance(options.build / "tests/conformance/conformance_tests", folder, options.only)
            wrong += check_hostile(options.build / "tests/unit/net_tests", folder, options.only)
        except Finding as finding:
            wrong = [str(finding)]
    for line in wrong:
        print(f"wrong: {line}")
    print("tshark objects" if wrong else "tshark agrees")
    return 1 if wrong else 0


sys.exit(main())
