#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""programs_test.py --programs DIR [--stand-in-cuda LIBRARY] [--report FILE] [--sanitized] [--share K/N] [TEST...]: uses
the examples as a user would.

Every wait is for a condition and has a bound. What has to happen in the middle of a copy is made certain by the size
of the file: a sparse one of 64 GiB is not through before the test is.
"""
import argparse
import contextlib
import http.client
import http.server
import json
import os
import pty
import random
import re
import resource
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

MIB = 1 << 20
PATIENCE = 60  # seconds that anything may take on a busy machine, with sanitizers
POOL_AND_64_MIB = 128
options = None


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.002)


def own_loopback():
    """An address of the loopback whose ports no other program takes: kit/loopback.hpp."""
    pid = os.getpid()
    return f"127.{64 + (pid >> 16 & 63)}.{pid >> 8 & 255}.{pid & 255}"


def dial(address):
    """A plain connection over TCP."""
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def all_from(peer):
    """What it says, up to the end of the stream."""
    return b"".join(iter(lambda: peer.recv(65536), b""))


def is_free(address):
    host, port = address.split(":")
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, int(port)))
        return True
    return False


def random_file(path, size):
    path.write_bytes(random.Random(size).randbytes(size))
    return path


def endless_file(path):
    with path.open("wb") as file:
        file.truncate(64 << 30)
    return path


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit code {self.code}\n{self.out}{self.err}"


class Process:
    """A program that runs beside the test, its output in files."""

    def __init__(self, test, command, **kwargs):
        self.out_path = Path(tempfile.mkstemp(dir=test.logs)[1])
        self.err_path = Path(tempfile.mkstemp(dir=test.logs)[1])
        with self.out_path.open("w") as out, self.err_path.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, **{"stdin": subprocess.DEVNULL, **kwargs})
        test.addCleanup(self.kill)

    @property
    def out(self):
        return self.out_path.read_text()

    @property
    def err(self):
        return self.err_path.read_text()

    @property
    def address(self):
        """Where it listens, as a server says first."""
        return re.search(r" on ([^\s,]+)", self.out)[1]

    def has_ended(self):
        return self.process.poll() is not None

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if "Sanitizer" in self.err or "runtime error:" in self.err:
            raise AssertionError(self.err)

    def result(self):
        try:
            return Result(self.process.wait(PATIENCE), self.out, self.err)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end: {self.out}{self.err}") from None


class ProgramTest(unittest.TestCase):
    device = None  # what the programs are told that have such an option, unless a test tells them; None: nothing
    peer = r"127\.0\.0\.1:\d+"  # what a server calls its clients, over that device

    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="weft-test-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.logs = self.directory / "logs"
        self.here = self.directory / "here"
        self.served = self.directory / "served"
        for path in (self.logs, self.here, self.served):
            path.mkdir()

    def program(self, name):
        return str(options.programs / name)

    def start(self, name, *arguments, **kwargs):
        return Process(self, self.command(name, *arguments), cwd=self.here, **kwargs)

    def command(self, name, *arguments):
        arguments = [str(word) for word in arguments]
        if self.device is not None and "--device" not in arguments:
            option = ["--device", self.device]
            if name in ("copy", "kvcache", "weft-perf"):
                arguments = [*arguments, *option]
            elif name in ("kv", "nvme", "rpc"):
                arguments = [*option, *arguments]
        return [self.program(name), *arguments]

    def run_program(self, name, *arguments, **kwargs):
        return self.start(name, *arguments, **kwargs).result()

    def start_server(self, name, *arguments, says=lambda out: "\n" in out, **kwargs):
        """A program that has said by its output that it serves."""
        server = self.start(name, *arguments, **kwargs)
        self.wait_while_it_runs(server, lambda: says(server.out), name)
        return server

    def wait_while_it_runs(self, process, condition, what):
        wait_until(lambda: condition() or process.has_ended(), what)
        self.assertFalse(process.has_ended(), f"{process.out}{process.err}")

    def fine(self, result, out=None):
        """It has ended well, without a complaint, and has said `out` if that is given."""
        self.assertEqual((result.code, result.err), (0, ""), result)
        if out is not None:
            self.assertEqual(result.out, out, result)
        return result

    def end_in_order(self, server, number=signal.SIGTERM):
        server.signal(number)
        return self.fine(server.result())

    def assert_one_line(self, name, result, pattern="", code=1):
        """An exit code, and one line on the standard error stream that says why."""
        self.assertEqual(result.code, code, result)
        self.assertRegex(result.err, rf"\A{name}: [^\n]*\n\Z")
        self.assertRegex(result.err, pattern)

    def assert_wrong_usage(self, name, *wrong):
        for arguments in wrong:
            self.assert_one_line(name, self.run_program(name, *arguments), rf" \({name} --help\)\n", code=2)

    def assert_help(self, name, *verbs):
        for arguments in ([], *([verb] for verb in verbs)):
            self.assertIn(name, self.fine(self.run_program(name, *arguments, "--help")).out)

    def stranger(self, address):
        """A connection to where a weft server listens, of one that does not speak its protocol."""
        if self.device == "shm":
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer.settimeout(PATIENCE)
            peer.connect(f"\0weft/{address}")
            return peer
        return dial(address)

    def disturb(self, address):
        """By one that takes it for something else, and goes."""
        with self.stranger(address) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10)

    def silent_listener(self):
        """One that takes connections and says nothing, and its address for weft."""
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        if self.device == "shm":
            silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.addCleanup(silent.close)
            silent.bind(f"\0weft/{address}")
            silent.listen()
        silent.settimeout(PATIENCE)
        return silent, address


class Toy(ProgramTest):
    def test_a_transport_of_ones_own_is_opened_by_its_name_and_carries_a_message(self):
        result = self.run_program("toy")
        self.assertEqual((result.code, result.out), (0, "hello came back over toy\n"), result)


class Echo(ProgramTest):
    def serve(self):
        return self.start_server("echo", "serve", "127.0.0.1:0")

    def test_what_is_said_comes_back(self):
        server = self.serve()
        for _ in range(3):
            result = self.run_program("echo", "say", server.address, "hello", "there")
            self.assertEqual((result.code, result.out), (0, "hello there\n"), result)

    def test_a_peer_that_is_no_peer_does_not_stop_it(self):
        server = self.serve()
        self.disturb(server.address)
        self.assertEqual(self.run_program("echo", "say", server.address, "still there").out, "still there\n")

    def test_wrong_usage_exits_with_2(self):
        for arguments in ([], ["say"], ["say", "127.0.0.1:1"], ["sing", "a", "b"]):
            self.assertEqual(self.run_program("echo", *arguments).code, 2, arguments)

    def test_no_listener_is_a_clear_error(self):
        self.assert_one_line("echo", self.run_program("echo", "say", "127.0.0.1:1", "x"),
                             r"\Aecho: nobody listens on 127\.0\.0\.1:1 .*refused\n\Z")


class Demo(ProgramTest):
    """What `./dev demo` runs."""

    def test_a_late_answer_spoils_memory_that_is_reused_and_none_that_is_retired(self):
        for device in ("shm", "iwarp"):
            self.fine(self.run_program("late_answer", "reuse", device), "answer 4711: sold out to be sent to Aachen\n")
            self.fine(self.run_program("late_answer", "retire", device), "order 4712: 3 anvils, to be sent to Aachen\n")

    def test_a_cable_that_is_pulled_and_plugged_in_loses_nothing(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            cable = self.start_server("cable", f"127.0.0.1:{listener.getsockname()[1]}", "1000")
            near = socket.create_connection(("127.0.0.1", int(cable.out.rpartition(":")[2])))
            far, _ = listener.accept()
            sent = random.Random(1).randbytes(8 * MIB)

            def send():
                near.sendall(sent)
                near.shutdown(socket.SHUT_WR)

            def carried_when(signal_number, word):
                """What the cable has carried once it says that it is what the signal makes it."""
                said = cable.out.count(word)
                cable.process.send_signal(signal_number)
                wait_until(lambda: cable.out.count(f"{word}: ") > said and cable.out.endswith("\n"), word)
                return int(cable.out.splitlines()[-1].split()[-1])

            sender = threading.Thread(target=send)
            sender.start()
            arrived = bytearray(far.recv(100, socket.MSG_WAITALL))
            for _ in range(3):
                before = carried_when(signal.SIGUSR1, "pulled")
                self.assertEqual(carried_when(signal.SIGUSR2, "plugged in"), before)
                arrived += far.recv(MIB)
            arrived += all_from(far)
            sender.join()
            self.assertEqual(arrived, sent)
            far.close()
            near.close()
            self.assertEqual(carried_when(signal.SIGTERM, "ended"), len(sent))

    def test_every_scene_has_its_table(self):
        demo = Path(__file__).parents[2] / "examples/demo/demo.py"
        done = subprocess.run([demo, options.programs.parent, "--quick"], capture_output=True, text=True, check=False,
                              timeout=5 * PATIENCE)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        for row in ("weft, iWARP in user space  +[0-9,]+ ", "plain TCP  +[0-9]+ MiB/s",
                    "weft, two cables .* [0-9]+ MiB +[0-9.]+ MiB +identical", "weft: memory retired +order 4712"):
            self.assertRegex(done.stdout, row)


class Porting(ProgramTest):
    """Programs beside the calls of other libraries."""

    def serve(self, program, *arguments):
        return self.start_server(program, "serve", *arguments, "127.0.0.1:0")

    def serve_log(self, log):
        try:
            return self.serve("from_rpma", log)
        except AssertionError as why:
            self.assertIn("is in memory, not on a disk", str(why))
            self.skipTest(str(why))

    def test_a_message_of_librdmacms_program_comes_back(self):
        server = self.serve("from_rdmacm")
        for text in ("hello", "x" * 64):
            self.fine(self.run_program("from_rdmacm", "send", server.address, text), f"{text}\n")
        self.assert_one_line("from_rdmacm", self.run_program("from_rdmacm", "send", server.address, "x" * 65), "64 bytes")

    def test_texts_of_libfabrics_program_are_written_counted_and_read(self):
        server = self.serve("from_libfabric")
        for texts in (["one"], ["one ", "two ", "three"], ["x"] * 16):
            self.fine(self.run_program("from_libfabric", "put", server.address, *texts), "".join(texts) + "\n")

    def test_a_notice_of_ucxs_program_is_written_and_found(self):
        server = self.serve("from_ucx")
        for text in ("hello", "x" * 63, "", "two words"):  # nothing of a longer text is left
            self.fine(self.run_program("from_ucx", "put", server.address, text), f"{text}\n")
        self.assert_one_line("from_ucx", self.run_program("from_ucx", "put", server.address, "x" * 64), "63 bytes")

    def test_a_log_of_librpmas_program_outlives_its_server(self):
        log = self.here / "log"
        server = self.serve_log(log)
        self.fine(self.run_program("from_rpma", "show", server.address), "\n")
        self.fine(self.run_program("from_rpma", "append", server.address, "hello "), "6 bytes are persistent\n")
        self.fine(self.run_program("from_rpma", "append", server.address, "there"), "11 bytes are persistent\n")
        server.process.kill()
        server.result()
        with log.open("r+b") as torn:  # a text whose client has not moved the end
            torn.seek(8 + len("hello there"))
            torn.write(b"torn")
        server = self.serve_log(log)
        self.fine(self.run_program("from_rpma", "show", server.address), "hello there\n")
        for _ in range(20):
            self.fine(self.run_program("from_rpma", "append", server.address, "x" * 100000))
        self.assert_one_line("from_rpma", self.run_program("from_rpma", "append", server.address, "x" * 100000), "full")

    def test_what_librpmas_program_calls_persistent_outlives_a_server_that_is_killed_at_any_moment(self):
        log = self.here / "log"
        server = self.serve_log(log)
        begun = time.monotonic()
        kept = "<whole>"
        self.fine(self.run_program("from_rpma", "append", server.address, kept))
        whole = time.monotonic() - begun
        server.process.kill()
        server.result()
        for number in range(8):
            server = self.serve_log(log)
            appending = self.start("from_rpma", "append", server.address, f"<{number}>")
            time.sleep(whole * number / 7)
            server.process.kill()
            server.result()
            said = appending.result().out
            server = self.serve_log(log)
            found = self.fine(self.run_program("from_rpma", "show", server.address)).out.removesuffix("\n")
            self.assertIn(found, [f"{kept}<{number}>"] + ([] if "persistent" in said else [kept]))
            kept = found
            server.process.kill()
            server.result()

    def test_lines_of_the_socket_program_come_as_bytes_over_weft_and_tcp_and_as_messages_and_are_read(self):
        lines = ("anvil 3", "rope 12", "lamp 7")
        for scheme in ("", "tcp://"):
            address = self.start_server("from_tcp", "bytes", f"{scheme}127.0.0.1:0").address
            for number, line in enumerate((*lines, "no such line")):
                self.fine(self.run_program("from_tcp", "bytes", address, str(number)), f"{line}\n")
        with dial(address) as peer:  # knows nothing of weft
            peer.sendall(b"20")
            peer.shutdown(socket.SHUT_WR)
            self.assertEqual(peer.makefile("rb").read(), b"\x06lamp 7\x07anvil 3")
        address = self.start_server("from_tcp", "messages", "127.0.0.1:0").address
        for _ in range(2):
            for number, line in enumerate(lines):
                self.fine(self.run_program("from_tcp", "messages", address, str(number)), f"told: {line}\nread: {line}\n")
            self.assert_one_line("from_tcp", self.run_program("from_tcp", "messages", address, "3"), "out of range")

    def test_wrong_usage_exits_with_2(self):
        for program in ("from_rdmacm", "from_libfabric", "from_rpma", "from_tcp", "from_ucx"):
            for arguments in ([], ["serve", "a", "b", "c", "d"], ["put", "x"], ["sing"]):
                self.assertEqual(self.run_program(program, *arguments).code, 2, (program, arguments))


class GuideTest(ProgramTest):
    """The programs of docs/guide, as its pages use them."""
    environment = None

    def serve(self, step, *arguments, address="127.0.0.1:0", **kwargs):
        return self.start_server(step, "serve", address, *arguments, env=self.environment,
                                 says=lambda out: "listening on" in out, **kwargs)

    def assert_says(self, result, out, err, code):
        self.assertEqual((result.code, result.out, result.err), (code, out, err), result)

    def use(self, step, *arguments):
        return self.run_program(step, *arguments, env=self.environment)

    def send(self, server, message):
        """What a peer of another program sends, as a whole message."""
        return self.use("step1_echo", "say", server.address, message)


class Guide(GuideTest):
    def test_step_1_sends_back_what_it_is_sent(self):
        server = self.serve("step1_echo")
        self.fine(self.use("step1_echo", "say", server.address, "hello"), "hello\n")
        self.fine(self.use("step1_echo", "say", server.address, "hello again"), "hello again\n")
        wait_until(lambda: server.out.count("the peer has closed") == 2, "the ends of the peers")

    def test_step_2_serves_many_and_ends_in_order_at_a_signal(self):
        server = self.serve("step2_many")
        clients = [self.start("step2_many", "say", server.address, *["word"] * 50) for _ in range(8)]
        for client in clients:
            self.fine(client.result(), "word\n" * 50)
        ended = self.end_in_order(server, signal.SIGINT)
        self.assertTrue(ended.out.endswith("stopping\nstopped\n"), ended)

    def test_step_3_keeps_what_it_is_told(self):
        server = self.serve("step3_messages")
        self.fine(self.use("step3_messages", "put", server.address, "colour", "blue"), "")
        self.fine(self.use("step3_messages", "get", server.address, "colour"), "blue\n")
        self.assert_says(self.use("step3_messages", "get", server.address, "shape"), "",
                         "step3_messages: there is no key 'shape'\n", 1)
        self.assert_says(self.use("step3_messages", "put", server.address, "k" * 33, "v"), "",
                         "step3_messages: a key has 1 to 32 bytes: invalid argument\n", 1)

    def test_step_3_ends_the_connection_of_a_peer_that_breaks_the_protocol_and_no_other(self):
        server = self.serve("step3_messages")
        for words in ("p", "x\x01kv", "p\x21" + "k" * 32, "p\x05four", "g\x01k and more"):
            self.assertEqual(self.send(server, words).code, 1)
        wait_until(lambda: server.err.count("sent a request that is not valid: malformed") == 5, "five reports")
        self.fine(self.use("step3_messages", "put", server.address, "colour", "blue"), "")

    def test_a_stuck_program_tells_who_waits_for_what(self):
        program = self.start("waiting")
        wait_until(lambda: "busy: busy (waiting.cpp" in program.err, "the report of the stall")

        def is_dumped():  # the clients may connect only after the stall
            program.signal(signal.SIGUSR1)
            return "on a semaphore or mutex" in program.err and "on recv" in program.err

        wait_until(is_dumped, "the dump")
        self.assertRegex(program.err, r"- \[program\] (first|second) client: ask \(waiting\.cpp:\d+\); \d+\.\d{3} s on recv\n")
        program.signal(signal.SIGINT)
        self.assertEqual(program.result().code, 0)
        names = {event.get("name") for event in json.loads((self.here / "waiting.json").read_text())["traceEvents"]}
        self.assertTrue(any("busy" in str(name) for name in names), names)


class GuideStore(GuideTest):
    def test_step_4_lets_clients_read_its_memory(self):
        server = self.serve("step4_lend")
        self.fine(self.use("step4_lend", "put", server.address, "colour", "blue"), "")
        self.fine(self.use("step4_lend", "get", server.address, "colour"), "blue\n")
        self.assert_says(self.use("step4_lend", "get", server.address, "shape"), "",
                         "step4_lend: there is no key 'shape'\n", 1)
        self.end_in_order(server)

    def test_step_5_believes_no_torn_value(self):
        server = self.serve("step5_torn")

        def reads_whole_values():  # none while the writer is without a processor in the middle of one
            result = self.fine(self.use("step5_torn", "watch", server.address, 2000))
            whole, torn, believed = map(int, re.search(
                r"2000 reads: (\d+) whole, (\d+) torn and noticed, (\d+) torn and believed", result.out).groups())
            self.assertEqual((whole + torn, believed), (2000, 0), result)
            return whole > 0

        wait_until(reads_whole_values, "a whole value")

    def test_step_6_goes_on_with_a_server_that_has_come_back(self):
        server = self.serve("step6_failures", address=f"{own_loopback()}:0")
        self.fine(self.use("step6_failures", "put", server.address, "colour", "blue"), "")
        watcher = self.start("step6_failures", "watch", server.address, "colour", env=self.environment)
        wait_until(lambda: "blue" in watcher.out, "the value")
        server.kill()
        wait_until(lambda: "the peer vanished without closing" in watcher.out, "the server's death to be noticed")
        wait_until(lambda: is_free(server.address), "the kernel to end what the process had asked it for")
        self.serve("step6_failures", address=server.address)
        wait_until(lambda: "(absent)" in watcher.out, "the other server to be found")
        self.fine(self.use("step6_failures", "put", server.address, "colour", "green"), "")
        wait_until(lambda: "green" in watcher.out, "the other server's value")

    def test_step_6_notices_a_server_that_hangs(self):
        server = self.serve("step6_failures")
        watcher = self.start("step6_failures", "watch", server.address, "colour", env=self.environment)
        wait_until(lambda: "(absent)" in watcher.out, "the connection")
        server.signal(signal.SIGSTOP)
        wait_until(lambda: "the peer has answered no heartbeat" in watcher.out, "the missing heartbeats")
        server.signal(signal.SIGCONT)
        wait_until(lambda: watcher.out.count("connected over") >= 2, "the second connection")

    def test_step_6_has_the_server_write_into_its_memory(self):
        server = self.serve("step6_failures")
        for key in ("shape", "colour"):
            self.fine(self.use("step6_failures", "put", server.address, key, "x"), "")
        # On a busy machine the client's patience may end first: then it asks again.
        wait_until(lambda: self.use("step6_failures", "list", server.address).out == "colour\nshape\n", "the list")

    def test_step_6_keeps_memory_that_a_late_server_may_write(self):
        server = self.serve("step6_failures", 4000)
        result = self.fine(self.use("step6_failures", "list", server.address))
        self.assertRegex(result.out, r"timed out; 65536 bytes retired\nthe late answer has come; 0 bytes retired\n\Z")

    def test_step_7_serves_on_several_threads_and_tells_its_figures(self):
        server = self.serve("step7_threads", 2)
        self.fine(self.use("step7_threads", "put", server.address, "colour", "blue"), "")
        result = self.fine(self.use("step7_threads", "bench", server.address, 4, 500))
        self.assertIn("2000 reads over 4 connections in ", result.out)
        server.signal(signal.SIGUSR1)
        wait_until(lambda: 'executor="worker 1"' in server.out, "the metrics")
        self.assertIn('weft_connections_opened_total{device="store"} 5\n', server.out)

    def publisher(self):
        """One that publishes what is written to its `input`."""
        server = self.serve("step8_publish", stdin=subprocess.PIPE)
        server.input = server.process.stdin
        self.addCleanup(server.input.close)
        return server

    def subscribe(self, server):
        before = server.out.count("subscribes at line")
        subscriber = self.start("step8_publish", "listen", server.address, env=self.environment)
        wait_until(lambda: server.out.count("subscribes at line") > before, "the subscription")
        return subscriber

    def publish(self, server, lines, subscriber):
        """Waits until the subscriber has the lines."""
        before = subscriber.out.count("\n")
        server.input.write("".join(f"{line}\n" for line in lines).encode())
        server.input.flush()
        wait_until(lambda: subscriber.out.count("\n") == before + len(lines), "the lines")

    def test_step_8_sends_each_line_to_all_subscribers(self):
        server = self.publisher()
        first = self.subscribe(server)
        self.publish(server, ["one", ""], first)
        second = self.subscribe(server)
        self.publish(server, ["three", "x" * 1025], first)
        server.input.close()
        self.fine(first.result(), f"one\n\nthree\n{'x' * 1024}\n(the end)\n")
        self.fine(second.result(), f"three\n{'x' * 1024}\n(the end)\n")
        self.fine(server.result())

    def test_step_8_drops_the_oldest_lines_of_a_slow_subscriber_and_of_no_other(self):
        server = self.publisher()
        fast, slow = self.subscribe(server), self.subscribe(server)
        slow.signal(signal.SIGSTOP)
        for at in range(0, 80, 8):  # 8 lines at a time, because 16 wait for the fast one without loss
            self.publish(server, range(at, at + 8), fast)
        slow.signal(signal.SIGCONT)
        server.input.close()
        self.fine(server.result())
        lines = [str(number) for number in range(80)]
        self.fine(fast.result(), "\n".join([*lines, "(the end)\n"]))
        *printed, end = self.fine(slow.result()).out.splitlines()
        self.assertEqual((printed[-16:], end), (lines[-16:], "(the end)"))
        following = missed = 0
        for line in printed:
            gap = re.fullmatch(r"\(missed (\d+)\)", line)
            if gap:
                missed += int(gap.group(1))
                following += int(gap.group(1))
            else:
                self.assertEqual(line, lines[following], printed)
                following += 1
        self.assertEqual(following, 80, printed)
        self.assertGreaterEqual(missed, 80 - 2 * 16 - 1, printed)  # in flight, in its queue, and in between

    def test_step_8_lets_go_of_subscribers_that_die_or_break_the_protocol(self):
        server = self.publisher()
        well, dying = self.subscribe(server), self.subscribe(server)
        dying.kill()
        wait_until(lambda: "the peer vanished without closing" in server.err, "the death to be noticed")
        self.send(server, "hello")
        wait_until(lambda: "sent something to its publisher: malformed" in server.err, "the report")
        self.publish(server, ["still here"], well)
        server.input.close()
        self.fine(well.result(), "still here\n(the end)\n")
        self.assertEqual(server.result().code, 0)


class GuideStoreOverIwarp(GuideStore):
    environment = {**os.environ, "FABRIC": "iwarp"}


class CopyTest(ProgramTest):
    device = "iwarp"

    def serve(self, *arguments, **kwargs):
        return self.start_server("copy", "serve", self.served, "--listen", "127.0.0.1:0", *arguments, **kwargs)

    def put(self, server, *files, **kwargs):
        return self.run_program("copy", "put", *files, server.address, **kwargs)

    def get(self, server, name, *arguments, **kwargs):
        return self.run_program("copy", "get", name, server.address, *arguments, **kwargs)

    def start_endless_put(self, server, *arguments):
        """A client in the middle of a put of a file named `endless`."""
        source = endless_file(self.here / "endless")
        client = self.start("copy", "put", source, server.address, *arguments)
        self.wait_while_it_runs(client, lambda: self.bytes_in(self.served) > 0, "a put to be under way")
        return client

    def start_endless_get(self, server, *arguments):
        endless_file(self.served / "endless")
        client = self.start("copy", "get", "endless", server.address, *arguments)
        self.wait_while_it_runs(client, lambda: self.bytes_in(self.here) > 0, "a get to be under way")
        return client

    @staticmethod
    def bytes_in(directory):
        total = 0
        for path in directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def assert_same(self, first, second):
        self.assertEqual(first.read_bytes(), second.read_bytes())

    def assert_holds(self, directory, *names):
        self.assertEqual(sorted(path.name for path in directory.iterdir()), sorted(names))

    def assert_serves_on(self, server):
        """Another client is served as if nothing had been; `served` holds its file afterwards."""
        source = random_file(self.directory / "after", 3 * MIB + 1)
        result = self.put(server, source)
        self.assertEqual(result.code, 0, f"{result}\nserver: {server.out}{server.err}")
        self.assert_same(source, self.served / "after")


class Copy(CopyTest):
    def test_files_of_all_sizes_arrive_and_come_back_over_one_connection(self):
        server = self.serve()
        sizes = [0, 1, 4095, MIB - 1, MIB, MIB + 1, 8 * MIB, 9 * MIB + 7, 33 * MIB + 1]
        sources = [random_file(self.here / f"file {size}", size) for size in sizes]
        result = self.fine(self.put(server, *sources))
        self.assertEqual(result.out.count("sha256"), len(sizes))
        for source in sources:
            self.assert_same(source, self.served / source.name)
            self.fine(self.get(server, source.name, "--output", "back"))
            self.assert_same(source, self.here / "back")
        self.assert_holds(self.served, *(source.name for source in sources))
        self.assertEqual(server.err, "")

    def test_the_printed_digest_is_the_files(self):
        server = self.serve()
        source = random_file(self.here / "a", 5 * MIB)
        digest = subprocess.run(["sha256sum", source], capture_output=True, text=True, check=True).stdout.split()[0]
        self.assertIn(digest, self.put(server, source).out)
        self.assertIn(digest, self.get(server, "a").out)
        wait_until(lambda: server.out.count(digest) == 2, "the server's lines")

    def test_a_put_replaces_the_file_of_that_name(self):
        server = self.serve("--sync")
        (self.served / "a").write_text("old")
        source = random_file(self.here / "a", 2 * MIB)
        self.assertEqual(self.put(server, source).code, 0)
        self.assert_same(source, self.served / "a")

    def test_get_writes_where_it_is_told_and_else_here(self):
        server = self.serve()
        source = random_file(self.served / "a", MIB + 1)
        (self.here / "sub").mkdir()
        for arguments, place in (([], "a"), (["--output", "b", "--sync"], "b"), (["--output", "sub/c"], "sub/c")):
            self.fine(self.get(server, "a", *arguments))
            self.assert_same(source, self.here / place)

    def test_names_with_spaces_unicode_and_255_bytes(self):
        server = self.serve()
        names = ["with space", "grüße ☃", "x" * 255]
        sources = [random_file(self.here / name, 1000 + len(name)) for name in names]
        self.assertEqual(self.put(server, *sources).code, 0)
        self.assert_holds(self.served, *names)
        for source in sources:
            self.assertEqual(self.get(server, source.name, "--output", "back").code, 0)
            self.assert_same(source, self.here / "back")

    def test_many_clients_at_a_time_share_the_memory(self):
        server = self.serve()
        shared = random_file(self.served / "shared", 20 * MIB + 5)
        sources = [random_file(self.here / f"file{i}", 12 * MIB + i) for i in range(6)]
        clients = [self.start("copy", "put", source, server.address) for source in sources]
        clients += [self.start("copy", "get", "shared", server.address, "--output", f"copy{i}") for i in range(6)]
        for client in clients:
            self.fine(client.result())
        for source in sources:
            self.assert_same(source, self.served / source.name)
        for i in range(6):
            self.assert_same(shared, self.here / f"copy{i}")
        self.assertEqual(server.err, "")
        if not options.sanitized:
            self.assertLess(self.peak_mib(server), POOL_AND_64_MIB)

    def peak_mib(self, server):
        lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))

    def test_two_clients_that_put_the_same_name_leave_one_whole_file(self):
        server = self.serve()
        sources = []
        for i in range(2):
            (self.here / str(i)).mkdir()
            sources.append(random_file(self.here / str(i) / "same", 8 * MIB + i))
        clients = [self.start("copy", "put", source, server.address) for source in sources]
        for client in clients:
            self.assertEqual(client.result().code, 0)
        self.assert_holds(self.served, "same")
        self.assertIn((self.served / "same").read_bytes(), [source.read_bytes() for source in sources])

    def test_a_terminal_gets_a_bar_with_rate_and_time_left(self):
        server = self.serve()
        source = endless_file(self.here / "endless")
        terminal, inner = pty.openpty()
        client = subprocess.Popen(self.command("copy", "put", source, server.address), stdout=inner, stderr=inner)
        os.close(inner)
        self.addCleanup(os.close, terminal)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        seen = b""
        end = time.monotonic() + PATIENCE
        while b" left" not in seen and time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 4096)
        self.assertRegex(seen, rb"\rendless|endless \[")
        self.assertRegex(seen, rb"\[[#.]+\] \d+% of 64\.0 GiB, [\d.]+ \w+/s, [\d:]+ left")

    def test_a_reader_that_goes_away_is_no_reason_to_leave_half_a_file(self):
        server = self.serve()
        source = random_file(self.served / "a", 3 * MIB)
        read_end, write_end = os.pipe()
        os.close(read_end)
        client = subprocess.Popen(self.command("copy", "get", "a", server.address), cwd=self.here, stdout=write_end)
        os.close(write_end)
        client.wait(PATIENCE)
        self.assert_holds(self.here, "a")
        self.assert_same(source, self.here / "a")


class CopyUsage(CopyTest):
    def test_help_exits_with_0(self):
        self.assert_help("copy", "serve", "put", "get")

    def test_wrong_usage_exits_with_2_and_one_line(self):
        self.assert_wrong_usage("copy", [], ["frobnicate"], ["put"], ["put", "127.0.0.1:1"], ["get", "x"], ["serve"],
                                ["serve", ".", "--timeout", "soon"], ["serve", ".", "--timeout", "0"],
                                ["get", "a", "b", "c"], ["serve", ".", "--frobnicate"])

    def test_an_unknown_device_is_an_error_that_names_the_known_ones(self):
        result = self.run_program("copy", "serve", ".", "--device", "token-ring")
        self.assert_one_line("copy", result, "token-ring.*iwarp")

    def test_the_device_can_be_named(self):
        for device in ("iwarp", "shm", "shm,iwarp"):
            server = self.serve("--device", device)
            self.assertIn(f" over {device},", server.out)

    def test_a_peer_of_this_machine_is_reached_through_shared_memory_if_nothing_else_is_asked_for(self):
        source = random_file(self.here / "a", 3 * MIB)
        server = self.serve("--device", "auto")
        self.assertEqual(self.put(server, source, "--device", "auto").code, 0)
        wait_until(lambda: ": put a: " in server.out, "the server's line")
        self.assertRegex(server.out, r"\nprocess \d+: put a: ")

    def test_a_server_needs_a_directory_and_a_free_address(self):
        (self.here / "file").touch()
        busy = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(busy.close)
        port = busy.getsockname()[1]
        self.assert_one_line("copy", self.run_program("copy", "serve", "nowhere", "--listen", "127.0.0.1:0"),
                             "No such file")
        self.assert_one_line("copy", self.run_program("copy", "serve", "file", "--listen", "127.0.0.1:0"),
                             "Not a directory")
        self.assert_one_line("copy", self.run_program("copy", "serve", ".", "--listen", f"127.0.0.1:{port}"), "in use")
        self.assert_one_line("copy", self.run_program("copy", "serve", ".", "--listen", "nonsense"), "nonsense")


class CopyBadFiles(CopyTest):
    def test_what_is_no_file_is_named_and_the_other_files_still_go(self):
        server = self.serve()
        good = random_file(self.here / "good", MIB)
        (self.here / "folder").mkdir()
        os.mkfifo(self.here / "pipe")
        for bad, why in (("missing", "No such file"), ("folder", "is a directory"), ("pipe", "not a regular file"),
                         ("/dev/null", "not a regular file"), ("/proc/cpuinfo", "more bytes than its size says")):
            result = self.put(server, bad, good)
            self.assert_one_line("copy", result, f"put {bad}: .*{why}")
            self.assert_same(good, self.served / "good")
            (self.served / "good").unlink()
        self.assert_holds(self.served)
        self.assertEqual(server.err, "")

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_a_file_that_may_not_be_read(self):
        server = self.serve()
        source = random_file(self.here / "secret", 10)
        source.chmod(0)
        self.assert_one_line("copy", self.put(server, source), "Permission denied")

    def test_a_put_over_a_directory_is_refused(self):
        server = self.serve()
        (self.served / "a").mkdir()
        source = random_file(self.here / "a", 10)
        self.assert_one_line("copy", self.put(server, source), "put .*a: the peer refuses: 'a' is a directory")
        self.assert_holds(self.served, "a")
        wait_until(lambda: "is a directory" in server.err, "the server's line")

    def test_names_that_would_leave_the_directory_are_refused(self):
        server = self.serve()
        random_file(self.directory / "secret", 10)
        random_file(self.served / ".hidden", 10)
        (self.served / "link").symlink_to(self.directory / "secret")
        for name, why in (("../secret", "begins with a dot"), ("x/../../secret", "contains a slash"),
                          (str(self.directory / "secret"), "contains a slash"), (".hidden", "begins with a dot"),
                          ("..", "begins with a dot"), ("", "is empty"), ("x" * 256, "longer than 255"),
                          ("a\nb", "control character"), ("link", "symbolic link"), ("missing", "No such file")):
            self.assert_one_line("copy", self.get(server, name, "--output", "out"), why)
        hidden = random_file(self.here / ".hidden", 11)
        self.assert_one_line("copy", self.put(server, hidden), "begins with a dot")
        hidden.unlink()
        self.assert_holds(self.here)
        self.assertEqual((self.served / ".hidden").stat().st_size, 10)
        self.assert_serves_on(server)

    def test_a_get_to_where_nothing_can_be_written(self):
        server = self.serve()
        random_file(self.served / "a", MIB)
        (self.here / "folder").mkdir()
        self.assert_one_line("copy", self.get(server, "a", "--output", "nowhere/a"), "nowhere.*No such file")
        self.assert_one_line("copy", self.get(server, "a", "--output", "folder"), "is a directory")
        self.assert_one_line("copy", self.get(server, "a", "--output", "nowhere/"), "nowhere.*No such file")
        self.assert_holds(self.here, "folder")
        self.assertEqual(self.get(server, "a", "--output", "folder/").code, 0)
        self.assert_same(self.served / "a", self.here / "folder" / "a")
        self.assertEqual(server.err, "")

    def test_a_receiver_whose_disk_is_full_says_so_and_leaves_nothing(self):
        # A limit on the size of files fails the same call, write(2), at the same place as a full disk.
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, 4 * MIB))

        server = self.serve(preexec_fn=small_files)
        source = random_file(self.here / "large", 40 * MIB)
        small = random_file(self.here / "small", MIB)
        self.assert_one_line("copy", self.put(server, source, small),
                             "large: the peer says: cannot write 'large': File too large")
        self.assert_holds(self.served, "small")
        wait_until(lambda: "File too large" in server.err, "the server's line")
        self.assert_serves_on(server)

    def test_a_client_whose_disk_is_full_says_so_and_leaves_nothing(self):
        server = self.serve()
        random_file(self.served / "large", 40 * MIB)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, 4 * MIB))
        self.assert_one_line("copy", self.get(server, "large", preexec_fn=limit),
                             "get large: cannot write 'large': File too large")
        self.assert_holds(self.here)
        wait_until(lambda: "the peer says: cannot write" in server.err, "the server's line")
        self.assert_serves_on(server)

    def test_a_really_full_disk(self):
        small = self.directory / "small"
        small.mkdir()
        prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c",
                  f'mount -t tmpfs -o size=2M tmpfs "{small}" && exec "$@"', "sh"]
        if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
            self.skipTest("no mount namespaces here")
        server = Process(self, [*prefix, *self.command("copy", "serve", small, "--listen", "127.0.0.1:0")])
        wait_until(lambda: "\n" in server.out, "the server")
        large = random_file(self.here / "large", 20 * MIB)
        tiny = random_file(self.here / "tiny", 1000)
        result = self.put(server, large, tiny)
        self.assert_one_line("copy", result, "large: the peer says: cannot write 'large': No space left on device")
        back = self.get(server, "tiny", "--output", "back")
        self.assertEqual(back.code, 0, back)
        self.assert_same(tiny, self.here / "back")

    def test_a_file_that_shrinks_while_it_is_read(self):
        server = self.serve()
        client = self.start_endless_put(server)
        os.truncate(self.here / "endless", 0)
        self.assert_one_line("copy", client.result(), "'.*endless' became shorter while it was read")
        wait_until(lambda: "became shorter" in server.err, "the server's line")
        self.assert_holds(self.served)
        self.assert_serves_on(server)

    def test_a_file_that_is_written_to_while_it_is_read(self):
        server = self.serve()
        for _ in range(20):  # until the put is caught in the middle
            source = random_file(self.here / "a", 32 * MIB)
            client = self.start("copy", "put", source, server.address)
            wait_until(lambda: list(self.served.iterdir()), "the put")
            server.signal(signal.SIGSTOP)
            # So that it has yet to read: it reads a few MiB ahead of what the server has written.
            caught = not (self.served / "a").exists() and self.bytes_in(self.served) <= 16 * MIB
            with source.open("r+b") as file:
                file.write(b"other")
            server.signal(signal.SIGCONT)
            result = client.result()
            if caught:
                break
            (self.served / "a").unlink()
        self.assert_one_line("copy", result, "'.*a' changed while it was read")
        self.assert_holds(self.served)


class CopyBadPeers(CopyTest):
    def setUp(self):
        super().setUp()
        self.source = random_file(self.here / "a", 2 * MIB)

    def test_no_listener(self):
        self.assert_one_line("copy", self.run_program("copy", "put", self.source, "127.0.0.1:1"), "127.0.0.1:1.*refused")
        self.assert_one_line("copy", self.run_program("copy", "get", "b", "127.0.0.1:1"), "127.0.0.1:1.*refused")

    def test_an_address_that_is_none(self):
        for address in ("nowhere", "127.0.0.1:", "127.0.0.1:99999", "no.such.host.invalid:1"):
            self.assert_one_line("copy", self.run_program("copy", "put", self.source, address), address.split(":")[0])

    def test_a_web_server_on_the_port(self):
        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler)
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(web.shutdown)
        address = f"127.0.0.1:{web.server_address[1]}"
        self.assert_one_line("copy", self.run_program("copy", "put", self.source, address, "--timeout", "2"), address)

    def test_a_listener_that_says_nothing_is_waited_for_only_so_long(self):
        _, address = self.silent_listener()
        self.assert_one_line("copy", self.run_program("copy", "put", self.source, address, "--timeout", "0.5"), "timed out")

    def test_strangers_at_the_port_do_not_disturb_the_server(self):
        server = self.serve()
        garbage = random.Random(1).randbytes(100_000)
        for said in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", garbage, b"", b"MPA ID Req Frame", b"\x16\x03\x01" + garbage):
            with self.stranger(server.address) as stranger, contextlib.suppress(OSError):
                stranger.sendall(said)
        with self.stranger(server.address) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(browser.recv(1000), b"", "a browser is hung up on")
        self.assert_serves_on(server)

    def test_another_weft_program_is_told_from_a_copy(self):
        server = self.start_server("echo", "serve", "127.0.0.1:0")
        result = self.run_program("copy", "put", self.source, server.out.split()[-1])
        self.assert_one_line("copy", result, "does not run this version of copy")
        copy_server = self.serve()
        self.assertEqual(self.run_program("echo", "say", copy_server.address, "x").code, 1)
        wait_until(lambda: "does not run this version of copy" in copy_server.err, "the server's line")
        self.assert_serves_on(copy_server)


class QuietHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


class CopyEnds(CopyTest):
    """What happens when one of the two sides ends in the middle, or hangs."""

    def test_a_client_killed_in_the_middle_of_a_put(self):
        server = self.serve()
        client = self.start_endless_put(server)
        client.signal(signal.SIGKILL)
        wait_until(lambda: "put endless" in server.err, "the server to notice")
        self.assertRegex(server.err, rf"\Acopy: {self.peer}: put endless: [^\n]*(vanished|reset)[^\n]*\n\Z")
        self.assert_holds(self.served)
        self.assert_serves_on(server)

    def test_a_client_killed_in_the_middle_of_a_get(self):
        server = self.serve()
        client = self.start_endless_get(server)
        client.signal(signal.SIGKILL)
        wait_until(lambda: "get endless" in server.err, "the server to notice")
        self.assertRegex(server.err, rf"\Acopy: {self.peer}: get endless: [^\n]*(vanished|reset)[^\n]*\n\Z")
        client.kill()
        self.assertFalse((self.here / "endless").exists())
        (self.served / "endless").unlink()
        self.assert_serves_on(server)

    def test_a_server_killed_in_the_middle_of_a_put(self):
        server = self.serve()
        client = self.start_endless_put(server)
        server.signal(signal.SIGKILL)
        self.assert_one_line("copy", client.result(), "put .*endless: .*(vanished|reset)")
        self.assertFalse((self.served / "endless").exists())

    def test_a_server_killed_in_the_middle_of_a_get(self):
        server = self.serve()
        client = self.start_endless_get(server)
        server.signal(signal.SIGKILL)
        self.assert_one_line("copy", client.result(), "get endless: .*(vanished|reset)")
        self.assert_holds(self.here)

    def test_a_peer_that_hangs_is_waited_for_only_so_long(self):
        for start in (self.start_endless_put, self.start_endless_get):
            server = self.serve()
            client = start(server, "--timeout", "5")
            server.signal(signal.SIGSTOP)
            self.assert_one_line("copy", client.result(), "timed out")
            server.signal(signal.SIGKILL)
            server.kill()
            for path in (self.here / "endless", *self.served.iterdir()):
                path.unlink(missing_ok=True)
            self.assert_holds(self.here)

    def test_a_client_that_hangs_does_not_hold_its_file_forever(self):
        server = self.serve("--timeout", "5")
        client = self.start_endless_put(server)
        client.signal(signal.SIGSTOP)
        wait_until(lambda: "put endless" in server.err, "the server's patience to end")
        self.assertIn("timed out", server.err)
        wait_until(lambda: not list(self.served.iterdir()), "the partial file to go")
        self.assert_serves_on(server)

    def test_an_interrupted_put_leaves_nothing(self):
        server = self.serve()
        for number in (signal.SIGINT, signal.SIGTERM):
            client = self.start_endless_put(server)
            client.signal(number)
            self.assert_one_line("copy", client.result(), "interrupted")
            wait_until(lambda: not list(self.served.iterdir()), "the partial file to go")
        self.assert_serves_on(server)

    def test_an_interrupted_get_leaves_nothing(self):
        server = self.serve()
        for number in (signal.SIGINT, signal.SIGTERM):
            client = self.start_endless_get(server)
            client.signal(number)
            self.assert_one_line("copy", client.result(), "interrupted")
            self.assert_holds(self.here)

    def test_an_interrupted_server_ends_in_order_and_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            server = self.serve()
            client = self.start_endless_put(server)
            server.signal(number)
            result = server.result()
            self.assertEqual(result.code, 0, result)
            self.assert_one_line("copy", client.result(), "put .*endless")
            self.assert_holds(self.served)

    def test_a_server_that_serves_nobody_can_be_interrupted(self):
        server = self.serve()
        self.end_in_order(server, signal.SIGINT)

    def test_a_connect_can_be_interrupted(self):
        silent, address = self.silent_listener()
        client = self.start("copy", "get", "a", address)
        connection, _ = silent.accept()
        self.addCleanup(connection.close)
        self.assertTrue(connection.recv(1))  # it has begun its set-up
        client.signal(signal.SIGINT)
        self.assert_one_line("copy", client.result(), "interrupted")


class OverShm:
    """Sanitizers see shared memory in the conformance suite, and in copies; these take minutes under them."""

    device = "shm"

    @classmethod
    def setUpClass(cls):
        if options.sanitized:
            raise unittest.SkipTest("without sanitizers only")
        super().setUpClass()


class CopyOverShm(Copy):
    device = "shm"


class CopyBadPeersOverShm(OverShm, CopyBadPeers):
    pass


class CopyEndsOverShm(OverShm, CopyEnds):
    peer = r"process \d+"


class Perf(ProgramTest):
    """weft-perf. What it measures is not for a test to judge; that it does measure is."""
    device = "iwarp"
    chooses_checksum = True

    def serve(self, *arguments):
        return self.start_server("weft-perf", "serve", "127.0.0.1:0", *arguments)

    def measure(self, server, *arguments):
        return self.run_program("weft-perf", "run", server.address, *arguments)

    @staticmethod
    def rows(result):
        """{(operation, quantity): {size: operations}} of a table."""
        sections = {}
        for line in result.out.splitlines():
            words = line.replace(",", "").split()
            if words[1:2] and words[1] in ("latency", "bandwidth"):
                sections[words[0], words[1]] = section = {}
            elif len(words) == 11 and words[1].isdigit():
                section[words[0]] = int(words[1])
        return sections

    def test_every_operation_is_measured_at_every_size(self):
        server = self.serve()
        # 8 bytes is the size of a mark of the protocol.
        result = self.fine(self.measure(server, "--operations", "send,write,read", "--sizes", "1,8,64-128,1M",
                                        "--iterations", 100))
        wanted = dict.fromkeys(["1", "8", "64", "128", "1M"], 100)
        self.assertEqual(self.rows(result), {(operation, quantity): wanted for operation in ("send", "write", "read")
                                             for quantity in ("latency", "bandwidth")})
        for operation, size in (("flush", "1"), ("fetch_add", "8"), ("compare_swap", "8")):
            result = self.measure(server, "--operations", operation, "--iterations", 100)
            self.assertEqual(self.rows(result), {(operation, "latency"): {size: 100}, (operation, "bandwidth"): {size: 100}},
                             result)

    def test_json_has_the_same_figures(self):
        result = self.fine(self.measure(self.serve(), "--json", "--iterations", 100, "--sizes", "64,4K",
                                        "--operations", "send,read"))
        report = json.loads(result.out)
        self.assertEqual((report["program"], report["device"], report["connections"]), ("weft-perf", self.device, 1))
        self.assertEqual([(one["operation"], one["quantity"], one["size"]) for one in report["outcomes"]],
                         [(operation, quantity, size) for operation in ("send", "read")
                          for quantity in ("latency", "bandwidth") for size in (64, 4096)])
        for one in report["outcomes"]:
            self.assertEqual(one["operations"], 100)
            self.assertAlmostEqual(one["bytes_per_second"], one["size"] * 100 / one["seconds"], delta=1)
            percentiles = list(one["latency_ns"].values())
            self.assertEqual(percentiles, sorted(percentiles))
            self.assertGreater(percentiles[0], 0)
            self.assertGreater(one["longest_pause_ns"], 0)

    def test_a_plot_is_a_picture_with_all_that_was_measured(self):
        server = self.serve()
        arguments = ["--iterations", 20, "--operations", "send,write", "--plot", "plot.svg"]
        self.assertEqual(self.measure(server, "--sizes", "1-4K", *arguments).code, 0)
        root = ElementTree.parse(self.here / "plot.svg").getroot()
        self.assertTrue(root.tag.endswith("svg"))
        words = {text.text for text in root.iter() if text.tag.endswith("text")}
        self.assertLessEqual({"Latency, one at a time", "Bandwidth, 64 in flight", "send p50", "write p99.9", "write"}, words)
        points = [text.text for text in root.iter() if text.tag.endswith("title")]
        self.assertEqual(len(points), 2 * 13 * (3 + 1))
        # A single size has a picture too, and a new one takes the place of the old.
        self.assertEqual(self.measure(server, "--sizes", "1", "--measure", "bandwidth", *arguments).code, 0)
        ElementTree.parse(self.here / "plot.svg")

    def test_a_plot_that_cannot_be_written_is_found_out_at_once(self):
        result = self.run_program("weft-perf", "run", "127.0.0.1:1", "--plot", "no/such/directory.svg")
        self.assert_one_line("weft-perf", result, "cannot write 'no/such/directory.svg'.*No such file")

    def test_polling_checksum_and_depth_are_as_asked(self):
        plain, late = self.serve("--poll", "sleep"), self.serve("--poll", "sleep", "--checksum", "late")
        for policy in ("spin", "adaptive", "sleep"):
            for checksum in ("on", "off", "late"):
                server = late if checksum == "late" else plain
                result = self.measure(server, "--poll", policy, "--checksum", checksum, "--depth", 3, "--sizes", "64",
                                      "--measure", "bandwidth", "--iterations", 50)
                self.fine(result)
                said = f", checksum {checksum}" if self.chooses_checksum else " connection"
                self.assertIn(f" over {self.device}, ", result.out)
                self.assertIn(f"{said}, polling: {policy} here, sleep there", result.out)
                self.assertIn("3 in flight", result.out)

    def test_both_sides_or_none_place_payloads_before_they_are_checked(self):
        for serving, asked in (([], "late"), (["--checksum", "late"], "on")):
            result = self.measure(self.serve(*serving), "--checksum", asked, "--iterations", 1)
            self.assert_one_line("weft-perf", result, "needs (serve|run) --checksum late")

    def test_a_server_that_wants_checksums_has_them(self):
        server = self.serve("--checksum", "on")
        result = self.fine(self.measure(server, "--sizes", "64", "--iterations", 10, "--checksum", "off"))
        self.assertEqual("checksum on, polling:" in result.out, self.chooses_checksum)

    def test_seconds_bound_a_test(self):
        result = self.fine(self.measure(self.serve(), "--seconds", "0.05", "--sizes", "64", "--operations", "write"))
        for row in self.rows(result).values():
            self.assertGreater(row["64"], 0)

    def test_many_connections_and_clients_are_served_at_a_time(self):
        server = self.serve("--quiet")
        clients = [self.start("weft-perf", "run", server.address, "--connections", 20, "--iterations", 100, "--depth", 4,
                              "--sizes", "64,64K", "--poll", "sleep") for _ in range(3)]
        for client in clients:
            result = client.result()
            self.assertEqual((result.code, result.err, server.err), (0, "", ""), result)
            self.assertEqual({count for row in self.rows(result).values() for count in row.values()}, {100})
        self.assertEqual(server.err, "")
        self.assertEqual(server.out.count("\n"), 1)

    def test_the_server_says_what_it_has_done(self):
        server = self.serve()
        self.assertEqual(self.measure(server, "--iterations", 10, "--warm-up", 5, "--sizes", "100").code, 0)
        for line in ("echoed 15 messages of 100 bytes", "took 15 messages of 100 bytes",
                     "100 bytes of memory, open for read_src|write_dst"):
            wait_until(lambda: line in server.out, line)

    def test_wrong_usage_exits_with_2_and_one_line(self):
        wrong = [["run", "127.0.0.1:1", *arguments] for arguments in (
            ["--sizes", "0"], ["--sizes", "big"], ["--sizes", ""], ["--operations", "teleport"], ["--depth", "0"],
            ["--depth", "9000"], ["--connections", "0"], ["--seconds", "0"], ["--iterations", "0"],
            ["--seconds", "1", "--iterations", "1"], ["--measure", "everything"], ["--checksum", "maybe"])]
        self.assert_wrong_usage("weft-perf", [], ["frobnicate"], ["run"], ["serve", "--poll", "never"], ["serve", "a", "b"],
                                *wrong)

    def test_help_exits_with_0(self):
        self.assert_help("weft-perf", "serve", "run")

    def test_what_cannot_be_reached_is_named(self):
        self.assert_one_line("weft-perf", self.run_program("weft-perf", "run", "127.0.0.1:1"),
                             "nobody listens on 127.0.0.1:1 .*refused")
        self.assert_one_line("weft-perf", self.run_program("weft-perf", "run", "nonsense"), "nonsense")
        self.assert_one_line("weft-perf", self.run_program("weft-perf", "serve", "nonsense"), "nonsense")

    def test_what_there_is_no_memory_for_is_refused_in_words(self):
        server = self.serve("--memory", "16")
        for operation in ("send", "write"):
            result = self.measure(server, "--operations", operation, "--sizes", "64M", "--iterations", 1)
            self.assert_one_line("weft-perf", result, f"{operation} latency of 64M: .*raise my --memory to [0-9]+")
            result = self.measure(server, "--operations", operation, "--sizes", "64M", "--memory", "16")
            self.assert_one_line("weft-perf", result, f"{operation} latency of 64M: this takes --memory [0-9]+")
        self.assertEqual(self.measure(server, "--sizes", "64", "--iterations", 1).code, 0)

    def test_another_program_is_refused_and_the_server_goes_on(self):
        server = self.serve()
        stranger = self.run_program("echo", "say", server.address, "hello")
        self.assertEqual(stranger.code, 1)
        self.assertIn("only for this weft-perf", stranger.err)
        wait_until(lambda: "not weft-perf" in server.err, "the server's complaint")
        self.assertEqual(self.measure(server, "--sizes", "64", "--iterations", 1).code, 0)

    def test_an_interrupted_client_says_so(self):
        server = self.serve()
        for number in (signal.SIGINT, signal.SIGTERM):
            client = self.start("weft-perf", "run", server.address, "--sizes", "64", "--seconds", "1000")
            wait_until(lambda: self.connections_of(server) > 0 or client.has_ended(), "a connection")
            client.signal(number)
            self.assert_one_line("weft-perf", client.result(), "interrupted")
            wait_until(lambda: self.connections_of(server) == 0, "the end of the connection")

    def test_an_interrupted_server_ends_in_order(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            server = self.serve()
            client = self.start("weft-perf", "run", server.address, "--sizes", "64", "--seconds", "1000")
            wait_until(lambda: self.connections_of(server) > 0, "a connection")
            self.end_in_order(server, number)
            self.assert_one_line("weft-perf", client.result(), "send latency of 64|connect")

    @staticmethod
    def connections_of(server):
        """How many sockets a process holds, besides the one that listens."""
        sockets = 0
        for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                sockets += os.readlink(entry).startswith("socket:")
        return sockets - 1


class Info(ProgramTest):
    """weft-info on whatever machine this is: what it says of others is tested with trees of files and in guests."""

    def serve(self, *arguments):
        return self.start_server("weft-info", "serve", "127.0.0.1:0", *arguments)

    def check(self, *arguments, **kwargs):
        """The findings by area, and the exit code, which has to agree with them."""
        result = self.run_program("weft-info", "check", "--json", *arguments, **kwargs)
        report = json.loads(result.out)
        self.assertEqual(result.code, 1 if report["hindered"] else 0, result)
        report["by_area"] = {one["area"]: one for one in report["findings"]}
        return report

    def test_it_lists_what_there_is_as_text_and_as_json(self):
        result = self.fine(self.run_program("weft-info"))
        for words in ("weft ", "event driver", "fabrics", "RDMA devices", "network interfaces", "locked memory"):
            self.assertIn(words, result.out)
        report = json.loads(self.run_program("weft-info", "--json").out)
        self.assertEqual(report["program"], "weft-info")
        opens = {one["name"]: one["opens"] for one in report["fabrics"]}
        self.assertTrue(opens["shm"] and opens["iwarp"], opens)
        self.assertIn("127.0.0.1", [one["address"] for each in report["interfaces"] for one in each["addresses"]])

    def test_it_needs_no_rights(self):
        if os.geteuid() != 0:
            self.skipTest("this is no root anyway")
        limit = lambda: (resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)), os.setgid(65534), os.setuid(65534))
        # Where it was built, others may not look: in root's home for instance.
        self.directory.chmod(0o755)
        shutil.copy(self.program("weft-info"), self.directory)
        self.program = lambda name: str(self.directory / name)
        report = self.check(preexec_fn=limit)
        self.assertEqual(report["by_area"]["descriptors"]["severity"], "warning")
        self.assertIn("200 files", report["by_area"]["descriptors"]["text"])

    def test_an_executor_that_cannot_be_made_is_found(self):
        report = self.check(env={**os.environ, "WEFT_EVENT_DRIVER": "kqueue"})
        self.assertEqual(report["by_area"]["event driver"]["severity"], "error")
        self.assertIn("kqueue", report["by_area"]["event driver"]["text"])

    def test_a_server_is_reached_over_each_fabric_and_all_arrives(self):
        server = self.serve()
        report = self.check(server.address)
        reached = {one["fabric"]: one for one in report["peer"]["fabrics"] if one["connected"]}
        self.assertTrue({"shm", "iwarp"} <= set(reached), report)
        for one in reached.values():
            self.assertEqual((one["largest_message"], one["written_bytes"], one["read_bytes"]), (32768, 4 * MIB, 4 * MIB))
            self.assertGreater(one["round_trip_ns"]["count"], 0)
        self.assertTrue(report["peer"]["path_mtu"]["was_probed"])
        self.assertGreaterEqual(report["peer"]["path_mtu"]["probed"], 1500)
        text = self.run_program("weft-info", "check", server.address, "--fabric", "iwarp")
        self.assertIn("transfers over iwarp", text.out)
        server.signal(signal.SIGTERM)
        self.assertEqual(server.result().code, 0)

    def test_a_report_tries_each_fabric_in_this_process_and_a_peer_and_hides_addresses(self):
        server = self.serve()
        result = self.run_program("weft-info", "check", server.address, "--report")
        report = json.loads(result.out)
        self.assertEqual(result.code, 1 if report["hindered"] else 0, result)
        for tried in (report["self_test"], report["peer"]["fabrics"]):
            tried = {one["fabric"]: one["operations"] for one in tried}
            for fabric in ("shm", "iwarp"):
                self.assertLessEqual({"write", "flush", "atomic", "expose"}, set(tried[fabric]), tried)
                self.assertEqual(set(tried[fabric].values()), {"passed"}, tried)
        named = json.loads(self.run_program("weft-info", "check", "--report", "--names").out)
        for one in (one for each in named["interfaces"] for one in each["addresses"]):
            if one["address"] not in ("127.0.0.1", "::1"):
                self.assertNotIn(f'"{one["address"]}"', result.out)

    def test_clients_that_are_killed_and_strangers_hurt_nobody(self):
        server = self.serve()
        for _ in range(3):
            with self.stranger(server.address) as peer:
                peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
            client = self.start("weft-info", "check", server.address)
            client.signal(signal.SIGKILL)
            client.process.wait()
        self.assertEqual(self.check(server.address, "--fabric", "iwarp")["by_area"]["transfers over iwarp"]["severity"], "ok")

    def test_a_peer_that_is_not_there_silent_or_something_else_is_told_in_a_sentence_each(self):
        def finding(address, *arguments):
            return self.check(address, "--fabric", "iwarp", *arguments)["by_area"]["peer over iwarp"]
        refused = finding("127.0.0.1:1")
        self.assertEqual(refused["severity"], "error")
        self.assertIn("nobody listens there", refused["text"])
        self.assertIn("weft-info serve", refused["remedy"])
        _, address = self.silent_listener()
        self.assertIn("takes the connection and says nothing", finding(address, "--timeout", "0.5")["text"])
        self.assertIn("no address of a peer", finding("nonsense")["text"])
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler) as web:
            threading.Thread(target=web.serve_forever, daemon=True).start()
            text = finding(f"127.0.0.1:{web.server_address[1]}", "--timeout", "2")["text"]
            web.shutdown()
        self.assertRegex(text, "says nothing|is no weft")

    def test_another_weft_program_is_reached_and_not_disturbed(self):
        server = self.start_server("weft-perf", "serve", "127.0.0.1:0", "--device", "iwarp")
        report = self.check(server.out.split()[2], "--fabric", "iwarp")
        self.assertIn("turns weft-info away", report["by_area"]["peer over iwarp"]["text"])
        self.assertFalse(report["hindered"], report)
        self.assertIsNone(server.process.poll())

    def test_wrong_usage_exits_with_2_and_one_line(self):
        self.assert_wrong_usage("weft-info", ["nonsense"], ["--no-such-option"], ["check", "a:1", "--timeout", "0"],
                                ["check", "a:1", "b:2"], ["check", "--names"])
        self.assert_help("weft-info", "check", "serve")

    def test_a_server_with_nowhere_to_listen_says_so(self):
        result = self.run_program("weft-info", "serve", "127.0.0.1:0", "--fabric", "no-such")
        self.assertEqual(result.code, 1, result)
        self.assertIn("no fabric to listen over", result.err)


class PerfOverShm(OverShm, Perf):
    chooses_checksum = False  # memory has its own

    def test_a_server_may_lend_its_memory_to_clients(self):
        server = self.serve("--direct")
        result = self.fine(self.measure(server, "--operations", "read,write,fetch_add", "--sizes", "64,1M",
                                        "--seconds", "0.05"))
        for section in self.rows(result).values():
            self.assertTrue(all(count > 0 for count in section.values()), result.out)


class StreamTest(ProgramTest):
    """The examples that stand on streams; each may be left out of a build."""

    def setUp(self):
        super().setUp()
        if not Path(self.program(self.name)).exists():
            self.skipTest(f"{self.name} was not built")

    def serve(self, *arguments, lines=1):
        return self.start_server(self.name, "serve", *arguments, says=lambda out: out.count("\n") >= lines)

    def speak(self, address, words):
        """What a plain socket gets for its words, up to the end of the stream."""
        with dial(address) as peer:
            peer.sendall(words)
            peer.shutdown(socket.SHUT_WR)
            return all_from(peer)

    def speak_in_pieces(self, address, words, size):
        """The same where the server ends the stream."""
        with dial(address) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for begin in range(0, len(words), size):
                peer.sendall(words[begin:begin + size])
            return all_from(peer)

    def run_out_of_descriptors(self, server, address, words, answer):
        """A server without a descriptor left goes on, and takes those that come once it has some."""
        connect = lambda: stack.enter_context(dial(address))

        def ask(peer):
            peer.sendall(words)
            self.assertEqual(peer.recv(1000), answer)

        with contextlib.ExitStack() as stack:
            ask(connect())
            pid = server.process.pid
            usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{pid}/fd").iterdir())), usual[1]))
            late = connect()
            self.wait_while_it_runs(server, lambda: "Too many open files" in server.err, "the shortage")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
            ask(late)
        self.assertEqual(server.err.count("Too many open files"), 1)


class AsioEcho(StreamTest):
    name = "asio_echo"

    def test_a_server_without_descriptors_goes_on(self):
        server = self.serve_both()
        self.run_out_of_descriptors(server, server.tcp, b"hello", b"hello")

    def serve_both(self, *threads):
        server = self.serve("0", "127.0.0.1:0", *threads, lines=2)
        first, second = server.out.splitlines()
        server.tcp, server.weft = first.split()[2], second.split()[2]
        return server

    def test_sockets_and_weft_are_answered_by_one_server(self):
        server = self.serve_both()
        for address in (server.weft, "tcp://" + server.tcp) * 2:
            self.fine(self.run_program(self.name, "say", address, "hello", "there"), "hello there\n")
        words = random.Random(1).randbytes(MIB)
        self.assertEqual(self.speak(server.tcp, words), words)
        self.assertEqual(server.err, "")

    def test_several_threads_share_the_peers_of_one_listener(self):
        server = self.serve_both("3")
        for i in range(5):
            self.fine(self.run_program(self.name, "say", server.weft, str(i)), f"{i}\n")
        self.assertEqual(server.err, "")

    def test_a_peer_that_breaks_off_does_not_stop_it(self):
        server = self.serve_both()
        peer = dial(server.tcp)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        wait_until(lambda: "a peer: " in server.err, "the server's line")
        self.assertEqual(self.speak(server.weft, b"GET / HTTP/1.1\r\n\r\n" * 10), b"")
        self.assertEqual(self.run_program(self.name, "say", server.weft, "still", "there").out, "still there\n")

    def test_wrong_usage_exits_with_2(self):
        for arguments in ([], ["say"], ["serve", "1"], ["sing", "a", "b"], ["serve", "99999", "127.0.0.1:0"],
                          ["serve", "-1", "127.0.0.1:0"], ["serve", "127.0.0.1:7473", "127.0.0.1:0"],
                          ["serve", "0", "127.0.0.1:0", "many"]):
            self.assertEqual(self.run_program(self.name, *arguments).code, 2, arguments)

    def test_a_port_that_is_taken_is_named(self):
        server = self.serve_both()
        for arguments in ((server.tcp.split(":")[1], "127.0.0.1:0"), ("0", server.weft)):
            self.assert_one_line("asio_echo", self.run_program(self.name, "serve", *arguments),
                                 r"\Aasio_echo: [^\n]*[Aa]ddress already in use[^\n]*\n\Z")


class Http(StreamTest):
    name = "http"

    def serve_both(self, *arguments):
        server = self.serve(*arguments, "127.0.0.1:0", "tcp://127.0.0.1:0", lines=2)
        words = [line.split()[2] for line in server.out.splitlines()]
        server.weft, server.tcp = sorted(words, key=lambda address: address.startswith("tcp://"))
        return server

    def test_pages_come_over_weft_and_over_tcp(self):
        server = self.serve_both()
        for address in (server.weft, server.tcp):
            result = self.run_program(self.name, "get", address, "/", "/nowhere", "/")
            self.assertEqual((result.code, result.out), (0, "It works.\n404: There is no such page.\nIt works.\n"), result)
            self.assertEqual(len(self.run_program(self.name, "get", address, "/large").out), MIB)
        self.assertEqual(server.err, "")

    def test_peers_beyond_the_limit_are_turned_away_at_each_address(self):
        server = self.serve_both("--max-connections", "1")
        host, port = server.tcp.removeprefix("tcp://").split(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port), PATIENCE)) as client:
            client.request("GET", "/")
            self.assertEqual(client.getresponse().read(), b"It works.\n")
            self.assertEqual(self.speak(server.tcp, b""), b"")
            self.assertEqual(self.run_program(self.name, "get", server.weft, "/").out, "It works.\n")

    def test_a_clients_library_understands_it(self):
        server = self.serve_both()
        host, port = server.tcp.removeprefix("tcp://").split(":")
        client = http.client.HTTPConnection(host, int(port), PATIENCE)
        body = random.Random(2).randbytes(100_000)
        for method, target, sent, status, got in (
                ("GET", "/", None, 200, b"It works.\n"), ("POST", "/echo", body, 200, body),
                ("HEAD", "/", None, 200, b""), ("PUT", "/", b"x", 405, None), ("GET", "/nowhere", None, 404, None)):
            client.request(method, target, sent)
            answer = client.getresponse()
            content = answer.read()
            self.assertEqual(answer.status, status, target)
            if got is not None:
                self.assertEqual(content, got)
        client.close()

    def test_requests_are_answered_in_order_however_they_are_cut(self):
        server = self.serve_both()
        requests = b"".join(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n%03d" % i for i in range(20))
        requests += b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        for size in (1, 7, 1000):
            answer = self.speak_in_pieces(server.tcp, requests, size)
            self.assertEqual([part[-3:] for part in answer.split(b"HTTP/1.1 200 OK")[1:21]],
                             [b"%03d" % i for i in range(20)])
            self.assertTrue(answer.endswith(b"It works.\n"))

    def test_what_is_no_http_is_told_so_and_hurts_nobody(self):
        server = self.serve_both()
        for words in (b"hello\r\n\r\n", b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost",
                      random.Random(3).randbytes(1000)):
            self.assertTrue(self.speak(server.tcp, words).startswith(b"HTTP/1.1 400 "), words[:50])
        for words, status in ((b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"400"),
                              (b"GET / HTTP/1.1\r\nA: " + b"x" * 200_000, b"400"),
                              (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 10_000_000, b"413"),
                              (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n" + b"x" * 0x200000,
                               b"413")):
            self.assertTrue(self.speak(server.tcp, words).startswith(b"HTTP/1.1 " + status + b" "), words[:50])
        self.assertEqual(self.run_program(self.name, "get", server.weft, "/").out, "It works.\n")

    def test_a_message_of_which_two_could_see_different_ends_is_refused(self):
        server = self.serve_both()
        chunked = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        for words in (b"POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
                      b"3\r\nabc\r\n0\r\n\r\n",
                      *(chunked + size + b"abc\r\n0\r\n\r\n" for size in (
                          b"3 3\r\n", b"3 \r\n", b"3\t3\r\n", b"3;a\nb\r\n", b"3;a=\x01\r\n", b"3\n", b"\r\n", b";a\r\n",
                          b"3;" + b"x" * 2000 + b"\r\n")),
                      chunked + b"3\r\nabc\r\n0 0\r\n\r\n",
                      *(chunked + b"3\r\nabc" + end for end in (b"XY0\r\n\r\n", b"\nX0\r\n\r\n", b"\n3\r\nabc",
                                                              b"\r\n0\r\n\rX", b"\r\n0\r\na: b\r\n\rX")),
                      b"GET / HTTP/1.1\r\nHost: a\r\n\rX",
                      b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\rXa"):
            self.assertTrue(self.speak(server.tcp, words).startswith(b"HTTP/1.1 400 "), words)
            self.assertEqual(self.speak(server.tcp, words).count(b"HTTP/1.1"), 1, words)

    def test_chunks_are_put_together_however_they_are_cut(self):
        server = self.serve_both()
        request = (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                   b"3;a=b\r\nabc\r\n00a ; c\r\n0123456789\r\n0\r\nTrailer: y\r\n\r\n")
        last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        for size in (1, 2, 3, 1000):
            answer = self.speak_in_pieces(server.tcp, request * 2 + last, size)
            self.assertEqual(answer.count(b"\r\n\r\nabc0123456789HTTP"), 2, answer)
            self.assertTrue(answer.endswith(b"It works.\n"))

    def test_a_request_has_one_host_that_is_one(self):
        server = self.serve_both()
        for fields, status in ((b"", b"400"), (b"Host: a\r\nHost: a\r\n", b"400"), (b"Host: a b\r\n", b"400"),
                               (b"Host: a\r\n b\r\n", b"400"), (b"Host: a@b\r\n", b"400"), (b"Host: a/b\r\n", b"400"),
                               (b"Hosts: a\r\n", b"400"), (b"Host:\r\n", b"200"), (b"hOST:  [::1]:80 \r\n", b"200"),
                               (b"X: Host\r\nHost: a\r\nY: b\r\n", b"200")):
            answer = self.speak(server.tcp, b"GET / HTTP/1.1\r\n" + fields + b"\r\n")
            self.assertTrue(answer.startswith(b"HTTP/1.1 " + status + b" "), fields)
        self.assertTrue(self.speak(server.tcp, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "))
        self.assertTrue(self.speak(server.tcp, b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n").startswith(b"HTTP/1.1 400 "))

    def test_a_peer_that_waits_for_100_continue_gets_it(self):
        server = self.serve_both()
        for fields, body in ((b"Content-Length: 3\r\n", b"abc"),
                             (b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n")):
            with dial(server.tcp) as peer:
                peer.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\n" + fields + b"\r\n")
                self.assertEqual(peer.recv(1000), b"HTTP/1.1 100 Continue\r\n\r\n")
                peer.sendall(body)
                self.assertTrue(peer.recv(1000).endswith(b"\r\n\r\nabc"))
        for words in (b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
                      b"POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
                      b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n"):
            self.assertTrue(self.speak(server.tcp, words).startswith(b"HTTP/1.1 200 "), words)

    def test_silent_peers_are_left(self):
        server = self.serve("--patience", "2", "tcp://127.0.0.1:0")
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(dial(server.address)) for _ in range(20)]
            for peer in silent[::2]:
                peer.sendall(b"GET / HTTP/1.1\r\nHo")
            answers = [all_from(peer) for peer in silent]
        self.assertTrue(all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers[::2]), answers)
        self.assertEqual(set(answers[1::2]), {b""})

    def test_wrong_usage_exits_with_2_and_no_server_is_a_clear_error(self):
        self.assert_wrong_usage("http", [], ["serve"], ["get", "127.0.0.1:1"], ["sing", "a", "b"])
        self.assertRegex(self.run_program(self.name, "get", "tcp://127.0.0.1:1", "/").err, r"\Ahttp: .*refused\n\Z")


class Tls(StreamTest):
    name = "tls"

    def test_words_come_back_over_weft_and_over_tcp(self):
        for address in ("127.0.0.1:0", "tcp://127.0.0.1:0"):
            server = self.serve("server.pem", address)
            for _ in range(2):
                result = self.fine(self.run_program(self.name, "say", "server.pem", server.address, "hello", "there"))
                self.assertRegex(result.out, r"\Ahello there\n\(TLSv1\.3, TLS_\w+\)\n\Z")

    def test_a_server_with_another_certificate_is_refused(self):
        server = self.serve("server.pem", "127.0.0.1:0")
        self.serve("other.pem", "127.0.0.1:0")
        result = self.run_program(self.name, "say", "other.pem", server.address, "secret")
        self.assertEqual((result.code, result.out), (1, ""), result)
        self.assertIn("certificate verify failed", result.err)
        wait_until(lambda: "\n" in server.err, "the server's line")
        self.assertRegex(server.err, r"\Atls: process \d+: ")
        self.assertEqual(self.run_program(self.name, "say", "server.pem", server.address, "x").code, 0)

    def test_another_library_speaks_with_it(self):
        server = self.serve("server.pem", "tcp://127.0.0.1:0")
        context = ssl.create_default_context(cafile=str(self.here / "server.pem"))
        with dial(server.address) as plain, context.wrap_socket(plain, server_hostname="weft.example") as peer:
            peer.sendall(b"by another library\n")
            self.assertEqual(peer.recv(100), b"by another library\n")

    def test_silent_peers_are_left_also_in_the_handshake(self):
        server = self.serve("server.pem", "tcp://127.0.0.1:0", "0.1")
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(dial(server.address))
            wait_until(lambda: server.err.count("it took too long") == 20, "the end of all")

    def test_wrong_usage_exits_with_2(self):
        for arguments in ([], ["serve"], ["say", "a", "b"]):
            self.assertEqual(self.run_program(self.name, *arguments).code, 2, arguments)


class Kv(StreamTest):
    name = "kv"
    device = "iwarp"

    def serve_table(self, *arguments, lines=1, host="127.0.0.1"):
        server = self.serve("--listen", f"{host}:0", "--tcp-address", host, "--tcp-port", "0", *arguments, lines=lines)
        words = server.out.split()
        server.weft, server.tcp = words[3], words[8]
        return server

    def serve_redis(self, *arguments):
        """The server of the table, which listens for Redis's and Valkey's clients too."""
        server = self.serve_table("--keys", "1000", "--resp-port", "0", "--valkey", "127.0.0.1:0", *arguments, lines=3)
        server.redis = re.search(r"^RESP on (127\.0\.0\.1:\d+) over TCP$", server.out, re.MULTILINE)[1]
        server.valkey = re.search(r"^Valkey over RDMA on (127\.0\.0\.1:\d+) over ", server.out, re.MULTILINE)[1]
        return server

    def redis_tool(self, name, server, *arguments):
        if shutil.which(name) is None:
            self.skipTest(f"there is no {name} (Debian: redis-tools)")
        host, port = server.redis.split(":")
        return Process(self, [name, "-h", host, "-p", port, *map(str, arguments)], cwd=self.here).result()

    def test_all_that_a_client_asks_for_in_a_few_words_is_answered(self):
        server = self.serve_table("--keys", "1000")
        value = b"x" * 60_000 + b"\r\n"
        self.assertEqual(self.speak(server.tcp, b"set a 0 0 60000\r\n" + value), b"STORED\r\n")
        self.assertEqual(self.speak(server.tcp, b"get a\n" * 100 + b"get b\nx\n"),
                         (b"VALUE a 0 60000\r\n" + value + b"END\r\n") * 100 + b"END\r\nERROR\r\n")

    def test_a_server_without_descriptors_goes_on(self):
        server = self.serve_table("--keys", "1000")
        self.run_out_of_descriptors(server, server.tcp, b"get nothing\r\n", b"END\r\n")

    def test_a_million_keys_are_read_while_they_are_set_and_no_value_is_torn(self):
        # Reading what another thread writes is what this is about, and what a sanitizer has to object to.
        keys, threads = (20_000, 1) if options.sanitized else (1_000_000, 2)
        server = self.serve_table("--fill", keys, "--keys", keys, "--threads", threads)
        result = self.assert_none_is_torn(server, "--keys", keys)
        self.assertRegex(result.out, r"GETs by one-sided reads +[1-9]\d* per second\n"
                                     r"GETs over TCP +[1-9]\d* per second\nratio")

    def assert_none_is_torn(self, server, *arguments):
        result = self.fine(self.run_program(self.name, "bench", server.weft, server.tcp, "--rounds", "3", "--milliseconds",
                                            "300", *arguments))
        self.assertRegex(result.out, r"[1-9]\d* GETs beside [1-9]\d* SETs; .* 0 values missing, 0 not whole\n\Z")
        self.assertEqual(server.err, "")
        return result

    def test_long_values_are_read_while_they_are_set_and_none_is_torn(self):
        long = "--value-bytes", "5000"  # which fill two thirds of the memory
        server = self.serve_table("--fill", "1000", "--keys", "1000", "--record-memory", "8", *long)
        self.assert_none_is_torn(server, "--keys", "1000", *long)

    def test_a_server_killed_and_started_anew_costs_what_was_under_way_and_answers_nothing_stale(self):
        keys = 5_000
        options_of_server = ("--fill", keys, "--keys", keys, "--resume-within", PATIENCE, "--metrics", "127.0.0.1:0")
        host = own_loopback()
        server = self.serve_table(*options_of_server, lines=2, host=host)
        weft, tcp = server.weft, server.tcp
        bench = self.start(self.name, "bench", weft, tcp, "--keys", keys, "--rounds", "3", "--milliseconds", "600",
                           "--resume-within", PATIENCE)
        for _ in range(2):
            self.wait_while_it_runs(bench, lambda: self.messages_of(server) > 0, "a SET")
            server.process.kill()
            server.process.wait()
            wait_until(lambda: all(map(is_free, (weft, tcp))), "the kernel to end what the process had asked it for")
            server = self.start(self.name, "serve", "--listen", weft, "--tcp-address", host, "--tcp-port",
                                tcp.split(":")[1], *options_of_server)
            wait_until(lambda: server.out.count("\n") == 2 or server.has_ended(), "the server")
            self.assertEqual(server.err, "")
        result = bench.result()
        self.assertEqual(result.code, 0, result)
        self.assertRegex(result.out, r"[1-9]\d* GETs beside [1-9]\d* SETs; .* 0 values missing, 0 not whole\n")
        self.assertRegex(result.out, r"3 servers, one after another; [1-9]\d* operations lost with their connections; "
                                     r"0 values of the past\n\Z")
        self.assertRegex(result.err, r"(?m)^kv: .*; connecting anew$")
        if self.device == "iwarp":
            self.assertGreaterEqual(result.err.count("its process was restarted"), 2, result)

    @staticmethod
    def messages_of(server):
        page = re.search(r"^metrics on (http://\S+)$", server.out, re.MULTILINE)[1]
        with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
            came = re.search(r"^weft_messages_received_total\{[^}]*\} (\d+)$", answer.read().decode(), re.MULTILINE)
        return int(came[1])

    def serve_watched(self):
        """The server with all that an operator can ask it for."""
        self.trace = self.here / "trace.json"
        server = self.serve_table("--keys", "1000", "--metrics", "127.0.0.1:0", "--trace", self.trace, "--stall-limit",
                                  "10000", "--threads", "2", "--resp-port", "0", lines=3)
        server.metrics = re.search(r"^metrics on (http://127\.0\.0\.1:\d+/metrics)$", server.out, re.MULTILINE)[1]
        return server

    def test_metrics_tell_what_the_server_has_done(self):
        server = self.serve_watched()
        self.assertEqual(self.run_program(self.name, "set", server.weft, "a", "x").code, 0)
        with urllib.request.urlopen(server.metrics, timeout=PATIENCE) as answer:
            self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
            page = answer.read().decode()
        for line in ("kv_keys 1", "kv_evicted_keys_total 0", "kv_record_bytes 0", f"kv_record_memory_bytes {256 * MIB}"):
            self.assertIn(f"\n{line}\n", page)
        self.assertIn(f'\nweft_connections_opened_total{{device="{self.device}"}} 1\n', page)
        for name in ("main", "weft 0", "weft 1", "resp 0"):
            self.assertRegex(page, rf'\nweft_executor_turns_total\{{executor="{name}"\}} [1-9]')

    def test_the_dashboard_shows_every_metric_and_none_that_there_is_not(self):
        self.device = "iwarp+iwarp"  # others have no rails to tell of
        with urllib.request.urlopen(self.serve_watched().metrics, timeout=PATIENCE) as answer:
            served = set(re.findall(r"^# TYPE (weft_\w+) ", answer.read().decode(), re.MULTILINE))
        dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
        queries = [query["expr"] for panel in dashboard["panels"] for query in panel.get("targets", [])]
        self.assertEqual(set(re.findall(r"\bweft_\w+", " ".join(queries))), served)

    def test_the_metrics_are_named_and_explained_as_prometheus_wants_them(self):
        if shutil.which("promtool") is None:
            self.skipTest("there is no promtool (Debian: prometheus)")
        self.device = "iwarp+iwarp"  # others have no rails to tell of
        with urllib.request.urlopen(self.serve_watched().metrics, timeout=PATIENCE) as answer:
            checked = subprocess.run(["promtool", "check", "metrics"], input=answer.read(), capture_output=True)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, b""))

    def test_signals_ask_a_running_server_for_its_tasks_and_for_a_trace(self):
        server = self.serve_watched()
        server.signal(signal.SIGUSR1)
        wait_until(lambda: "kv::serve_weft" in server.err, "the dump")
        for _ in range(2):  # the second ends the recording
            server.signal(signal.SIGUSR2)
            wait_until(lambda: self.trace.exists() or Path(f"{self.trace}.part").exists(), "the recording")
            self.assertEqual(self.run_program(self.name, "set", server.weft, "a", "x").code, 0)
        wait_until(self.trace.exists, "the trace")
        self.assertIn("kv::", self.trace.read_text())
        self.assertTrue(json.loads(self.trace.read_text())["traceEvents"])

    def test_an_address_for_metrics_that_is_in_use_is_a_clear_error(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            result = self.run_program(self.name, "serve", "--listen", "127.0.0.1:0", "--tcp-port", "0", "--keys", "10",
                                      "--metrics", address)
        self.assertEqual(result.code, 1)
        self.assertRegex(result.err, r"\Akv: listen on " + re.escape(address) + r"[^\n]*in use[^\n]*\n\Z")

    def test_clients_beyond_the_limit_are_told_so(self):
        server = self.serve_table("--keys", "1000", "--max-connections", "1")
        with dial(server.tcp) as first:
            first.sendall(b"get a\r\n")
            self.assertEqual(first.recv(100), b"END\r\n")
            self.assertEqual(self.speak(server.tcp, b""), b"SERVER_ERROR too many open connections\r\n")
        self.assertEqual(self.run_program(self.name, "set", server.weft, "a", "x").code, 0)

    def test_strangers_and_bad_requests_hurt_nobody(self):
        server = self.serve_table("--keys", "1000")
        self.assertIn(b"ERROR", self.speak(server.tcp, b"GET / HTTP/1.1\r\n\r\n"))
        self.assertIn(b"ERROR", self.speak(server.tcp, b"x" * 2000))
        with self.stranger(server.weft) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(stranger.recv(1000), b"")
        for address in (server.weft, "tcp://" + server.tcp):
            self.assertEqual(self.run_program(self.name, "set", address, "k" * 513, "x").code, 1)
            self.assertEqual(self.set_from_a_file(address, "k", b"x" * (MIB + 1)).code, 1)
        self.assertEqual(self.run_program(self.name, "set", server.weft, "k", "x").code, 0)

    def test_clients_of_all_kinds_see_the_same_data(self):
        server = self.serve_redis()
        addresses = server.weft, "tcp://" + server.tcp, "redis://" + server.redis, "valkey://" + server.valkey
        for i, setter in enumerate(addresses):
            self.fine(self.run_program(self.name, "set", setter, "key", f"value {i}"), "")
            for getter in addresses:
                self.fine(self.run_program(self.name, "get", getter, "key"), f"value {i}\n")
        for address in addresses:
            result = self.run_program(self.name, "get", address, "nothing")
            self.assertEqual((result.code, result.out, result.err), (1, "", ""), address)
            self.assert_one_line("kv", self.run_program(self.name, "set", address, "k" * 513, "x"), r"\Akv: set.*\n\Z")
        # What has expired for one is gone for all, also for who reads the table without the server.
        self.assertEqual(self.speak(server.redis, b"SET key soon PX 1\r\n"), b"+OK\r\n")
        for address in addresses:
            wait_until(lambda: self.run_program(self.name, "get", address, "key").code == 1, f"the end of it at {address}")
        self.assertEqual(self.speak(server.tcp, b"set a 7 0 2\r\nhi\r\n"), b"STORED\r\n")
        self.assertEqual(self.run_program(self.name, "get", server.weft, "a").out, "hi\n")
        self.assertEqual(self.speak(server.redis, b"EXPIRE a 100\r\nGET a\r\n"), b":1\r\n$2\r\nhi\r\n")
        self.assertEqual(self.speak(server.tcp, b"get a\r\n"), b"VALUE a 7 2\r\nhi\r\nEND\r\n")
        self.assertEqual(self.speak(server.redis, b"DEL a\r\n"), b":1\r\n")
        self.assertEqual(self.run_program(self.name, "get", server.weft, "a").code, 1)
        self.assertEqual(self.speak(server.tcp, b"set a 7 -1 2\r\nhi\r\nget a\r\n"), b"STORED\r\nEND\r\n")

    def set_from_a_file(self, address, key, value):
        path = self.here / "value"
        path.write_bytes(value)
        with path.open("rb") as file:
            return self.start(self.name, "set", address, key, stdin=file).result()

    def test_long_keys_and_values_are_everybodys_too(self):
        server = self.serve_redis()
        addresses = server.weft, "tcp://" + server.tcp, "redis://" + server.redis, "valkey://" + server.valkey
        text = random.Random(5).randbytes(MIB // 2).hex()
        for i, setter in enumerate(addresses):
            key = f"{i}" * 512
            self.fine(self.set_from_a_file(setter, key, text[i:].encode()), "")
            for getter in addresses:
                self.fine(self.run_program(self.name, "get", getter, key), text[i:] + "\n")
        self.assertEqual(server.err, "")

    def test_redis_cli_and_redis_benchmark_have_what_they_ask_for(self):
        server = self.serve_redis()
        for arguments, out in ((("ping",), "PONG"), (("set", "a", "1", "EX", "100"), "OK"), (("ttl", "a"), "100"),
                               (("incrby", "a", "41"), "42"), (("mget", "a", "b"), "42\n"), (("-3", "exists", "a"), "1"),
                               (("-3", "get", "b"), ""), (("config", "get", "save"), "save\n"), (("dbsize",), "1"),
                               (("--no-raw", "mget", "a", "b"), '1) "42"\n2) (nil)'), (("flushall",), "OK"),
                               (("nosuch",), "ERR unknown command 'nosuch', with args beginning with: \n")):
            self.fine(self.redis_tool("redis-cli", server, *arguments), out + "\n")
        for word in ("redis_version", "connected_clients"):
            self.assertIn(word, self.redis_tool("redis-cli", server, "info").out)
        many = b"".join(b"SET k%d %d\r\n" % (i % 900, i) for i in range(5000))
        self.assertEqual(self.speak(server.redis, many), b"+OK\r\n" * 5000)
        count = 500 if options.sanitized else 5000
        for arguments in (("-P", "1"), ("-P", "16", "-r", "1000"), ("-3",), ("-d", "4096", "-r", "1000")):
            result = self.redis_tool("redis-benchmark", server, "-t", "ping,set,get,incr,mset", "-n", count, "--csv", *arguments)
            self.assertEqual(result.code, 0, result)
            self.assertGreaterEqual(len(re.findall(r'^"[A-Z].*","[1-9]', result.out, re.MULTILINE)), 5, result.out)
        self.assertEqual(server.err, "")

    def test_a_client_that_breaks_a_protocol_is_named_on_the_console(self):
        server = self.serve_redis()
        for address, words, why in ((server.redis, b"*1x\r\n", "breaks Redis's protocol: invalid multibulk length"),
                                    (server.redis, b"POST / HTTP/1.1\r\n", "breaks Redis's protocol: it speaks HTTP"),
                                    (server.tcp, b"set a x 0 0\r\n",
                                     "it breaks the protocol (CLIENT_ERROR bad command line format)")):
            self.speak(address, words)
            wait_until(lambda: why in server.err, "the server's line")
            self.assertRegex(server.err.splitlines()[-1], r"127\.0\.0\.1:\d+:? " + re.escape(why))
        self.speak(server.redis, b"PING\r\nQUIT\r\n")
        self.assertEqual(server.err.count("\n"), 3, server.err)

    def test_clients_of_redis_may_ask_much_before_they_read(self):
        server = self.serve_redis()
        self.fine(self.run_program(self.name, "set", server.weft, "key", "x" * 64), "")
        count = 60_000
        with dial(server.redis) as peer:
            for _ in range(count // 1000):
                peer.sendall(b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n" * 1000)
            peer.shutdown(socket.SHUT_WR)
            come = sum(len(piece) for piece in iter(lambda: peer.recv(65536), b""))
        self.assertEqual(come, count * len(b"$64\r\n\r\n" + b"x" * 64))

    def test_a_value_of_another_server_may_be_long(self):
        words = random.Random(4).randbytes(3 * MIB).hex()
        with socket.create_server(("127.0.0.1", 0)) as other:
            client = self.start(self.name, "get", f"redis://127.0.0.1:{other.getsockname()[1]}", "a")
            other.settimeout(PATIENCE)
            peer, _ = other.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(f"${len(words)}\r\n{words}\r\n".encode())
                self.fine(client.result(), words + "\n")

    def test_hostile_clients_of_redis_are_told_why_they_are_left(self):
        server = self.serve_redis("--max-connections", "2")
        for words, why in ((b"*1\r\n$9999999\r\n", b"invalid bulk length"), (b"*2000\r\n", b"invalid multibulk length"),
                           (b"*1\r\n$4\r\nPINGPING", b"a bulk string does not end where it should"),
                           (b"x" * 70_000, b"too big inline request")):
            with contextlib.suppress(ConnectionResetError):  # it has not read all of what it leaves
                self.assertEqual(self.speak(server.redis, words), b"-ERR Protocol error: " + why + b"\r\n")
        with contextlib.ExitStack() as stack:
            for _ in range(2):  # they have no place any longer, although they stay
                peer = stack.enter_context(dial(server.redis))
                peer.sendall(b"*2000\r\n" + b"x" * 70_000)
                self.assertTrue(all_from(peer).startswith(b"-ERR Protocol error"))
            for _ in range(2):
                peer = stack.enter_context(dial(server.redis))
                peer.sendall(b"PING\r\n")
                self.assertEqual(peer.recv(100), b"+PONG\r\n")
            self.assertEqual(self.speak(server.redis, b""), b"-ERR max number of clients reached\r\n")
        with self.stranger(server.valkey) as stranger:
            stranger.sendall(b"PING\r\n" * 10)
        self.assertEqual(self.run_program(self.name, "set", "valkey://" + server.valkey, "a", "x").code, 0)

    def test_wrong_usage_exits_with_2_and_no_server_is_a_clear_error(self):
        self.assert_wrong_usage("kv", [], ["serve", "--threads", "0"], ["get", "127.0.0.1:1"], ["sing", "a", "b"],
                                ["serve", "--resp-port", "x"], ["serve", "--valkey"])
        for address in ("127.0.0.1:1", "tcp://127.0.0.1:1", "redis://127.0.0.1:1", "valkey://127.0.0.1:1"):
            self.assertRegex(self.run_program(self.name, "get", address, "a").err, r"\Akv: .*refused\n\Z")
        self.assert_one_line("kv", self.run_program("kv", "serve", "--listen", "127.0.0.1:0", "--tcp-port", "0",
                                                    "--valkey", "nowhere"), r"\Akv: listen on nowhere [^\n]*\n\Z")


class KvOverShm(OverShm, Kv):
    def test_clients_that_have_mapped_the_table_read_no_torn_value(self):
        server = self.serve_table("--fill", "20000", "--keys", "20000", "--direct")
        self.assert_none_is_torn(server, "--keys", "20000")


class Rpc(ProgramTest):
    device = "iwarp"

    def serve_calls(self):
        return self.start_server("rpc", "serve", "--listen", "127.0.0.1:0")

    def call(self, server, *arguments):
        return self.run_program("rpc", "call", server.address, *arguments)

    def test_calls_are_answered_and_their_errors_come_back_in_words(self):
        server = self.serve_calls()
        for arguments, out in ((("echo", "hello", "there"), "hello there"), (("sum", "1", "2", "39"), "42"),
                               (("sleep", "1"), "1"), (("echo",), "")):
            self.fine(self.call(server, *arguments), out + "\n")
        for arguments, err in ((("fail", "no", "such", "account"), "call fail: no such account"),
                               (("nothing",), "call nothing: there is no method 'nothing'"),
                               (("sum", "x"), "call sum: 'x' is not a number")):
            result = self.call(server, *arguments)
            self.assertEqual((result.code, result.out, result.err), (1, "", f"rpc: {err}\n"), result)
        self.assertEqual(server.err, "")

    def test_many_mebibytes_are_fetched_and_are_what_was_asked_for(self):
        server = self.serve_calls()
        result = self.fine(self.call(server, "fetch", "24M", "--timeout", PATIENCE))
        self.assertRegex(result.out, r"\A25165824 bytes in [0-9.]+ s, \d+ MiB/s\n\Z")
        self.assertRegex(self.call(server, "fetch", "many").err, r"\Arpc: 'many' is not a number\n\Z")
        self.assertRegex(self.call(server, "fetch", "1000G").err, r"\Arpc: call fetch: take room for \d+ bytes: 1 to ")

    def test_a_timeout_is_one_line_and_the_server_goes_on(self):
        server = self.serve_calls()
        self.assert_one_line("rpc", self.call(server, "sleep", "1000000", "--timeout", "0.01"),
                             r"\Arpc: call sleep: [^\n]*timed out\n\Z")
        self.assertEqual(self.call(server, "echo", "on").out, "on\n")
        self.assertEqual(server.err, "")

    def test_the_benchmark_tells_rates_and_latencies_also_where_calls_time_out(self):
        server = self.serve_calls()
        for arguments in ((), ("--concurrency", "100"), ("--fetch", "--size", "64K"), ("--timeout", "0.001")):
            result = self.fine(self.run_program("rpc", "bench", server.address, "--milliseconds", "200", *arguments))
            self.assertRegex(result.out, r"\A\d+ calls in [0-9.]+ s, \d+ at a time: \d+ per second.*\n"
                                         r"latency in us: min .* p50 .* p99.9 .* max .*\n"
                                         r"\d+ timed out, 0 wrong answers\n\Z")
        self.assertEqual(server.err, "")

    def test_a_signal_ends_the_server_in_order_and_a_second_one_the_calls_under_way(self):
        self.end_in_order(self.serve_calls())
        server = self.serve_calls()
        # Wherever the caller is when the signals come, both programs end.
        caller = self.start("rpc", "call", server.address, "sleep", "1000000", "--timeout", "1000000")
        server.signal(signal.SIGTERM)
        while server.process.poll() is None:
            server.signal(signal.SIGTERM)
            time.sleep(0.01)
        caller.kill()

    def test_strangers_hurt_nobody(self):
        server = self.serve_calls()
        self.disturb(server.address)
        result = self.run_program("echo", "say", server.address, "hello")
        self.assertEqual(result.code, 1, result)
        self.assertEqual(self.call(server, "echo", "on").out, "on\n")

    def test_wrong_usage_exits_with_2_and_no_server_is_a_clear_error(self):
        self.assert_wrong_usage("rpc", [], ["call", "127.0.0.1:1"], ["bench", "127.0.0.1:1", "--size", "x"], ["sing", "a", "b"])
        self.assertRegex(self.run_program("rpc", "call", "127.0.0.1:1", "echo").err, r"\Arpc: nobody listens on .*refused\n\Z")


class RpcOverShm(OverShm, Rpc):
    pass


class KvCacheTest(ProgramTest):
    device = "iwarp"
    at = "127.0.0.1:0"
    shape = ["--layers", 4, "--block-bytes", 4096]

    def serve(self, *arguments, pages=64):
        return self.start_server("kvcache", "serve", self.at, "--pages", pages, *self.shape, *arguments)

    def start_push(self, *arguments, pages=32):
        return self.start("kvcache", "push", *arguments, "--blocks", pages, *self.shape)

    def push(self, *arguments, **kwargs):
        return self.start_push(*arguments, **kwargs).result()

    def start_endless_push(self, *servers):
        """A pusher of which some sequences have been accepted, and that does not come to an end."""
        pusher = self.start_push(*(server.address for server in servers), "--sequences", 10 ** 12)
        self.wait_while_it_runs(pusher, lambda: "sequence 3: " in pusher.out, "a push to be under way")
        return pusher

    def assert_receives(self, server, **kwargs):
        result = self.push(server.address, "--sequences", 2, **kwargs)
        self.assertEqual(result.code, 0, f"{result}\nserver: {server.out}{server.err}")


class KvCache(KvCacheTest):
    def test_sequences_arrive_and_every_byte_of_them_is_checked(self):
        server = self.serve()
        result = self.fine(self.push(server.address, "--sequences", 5))
        self.assertEqual(len(re.findall(r"^sequence \d+: 32 pages of 4 layers, 524288 bytes, to 1 of 1: ", result.out, re.M)), 5)
        self.assertTrue(result.out.endswith("\n5 accepted, 0 evicted, 0 refused\n"), result)
        self.assertEqual(server.out.count(": accepted 32 pages of 4 layers, 524288 bytes\n"), 5)
        self.end_in_order(server, signal.SIGTERM)

    def test_several_receivers_get_the_same_sequences(self):
        servers = [self.serve() for _ in range(3)]
        result = self.fine(self.push(*(server.address for server in servers), "--sequences", 4))
        self.assertEqual(result.out.count(", to 3 of 3: "), 4)
        for server in servers:
            self.assertEqual((server.out.count(": accepted "), server.err), (4, ""))

    def test_several_pushers_share_the_pages(self):
        server = self.serve(pages=48)
        pushers = [self.start_push(server.address, "--sequences", 5) for _ in range(3)]
        for pusher in pushers:
            self.fine(pusher.result())
        self.assertEqual((server.out.count(": accepted "), server.err), (15, ""))

    def test_an_evicted_sequence_is_told_in_words_and_the_next_one_is_accepted(self):
        server = self.serve("--evict-every", 3, pages=32)
        result = self.push(server.address, "--sequences", 9)
        self.assertEqual(result.code, 0, f"{result}\nserver: {server.out}{server.err}")
        evicted = re.findall(r"^\S+: sequence (\d+) was evicted: \S", result.out, re.M)
        self.assertEqual(evicted, ["3", "6", "9"], result)
        self.assertTrue(result.out.endswith("\n6 accepted, 3 evicted, 0 refused\n"), result)
        accepted = re.findall(r"sequence (\d+): accepted ", server.out)
        self.assertEqual(accepted, ["1", "2", "4", "5", "7", "8"])
        self.assertEqual(server.out.count(": evicted at layer 2 of 4: the pages are needed for something else\n"), 3)

    def test_a_receiver_that_evicts_is_no_reason_for_the_others_to_miss_a_sequence(self):
        patient, needy = self.serve(), self.serve("--evict-every", 2)
        result = self.push(patient.address, needy.address, "--sequences", 6)
        self.assertEqual(result.code, 0, result)
        self.assertIn("\n9 accepted, 3 evicted, 0 refused\n", result.out)
        self.assertEqual(patient.out.count(": accepted "), 6)

    def test_a_receiver_that_is_killed_is_an_error_in_words(self):
        server = self.serve()
        pusher = self.start_endless_push(server)
        server.kill()
        self.assert_one_line("kvcache", pusher.result(), r"\Akvcache: 127\.0\.0\.1:\d+: sequence \d+: [^\n]*\n\Z")

    def test_a_receiver_that_is_killed_is_left_out_and_the_others_go_on(self):
        server, other = self.serve(), self.serve()
        pusher = self.start_endless_push(server, other)
        server.kill()
        wait_until(lambda: ", to 1 of 2: " in pusher.out, "a sequence for the other")
        self.assertRegex(pusher.err, rf"\Akvcache: {server.address}: sequence \d+: [^\n]*\n\Z")
        pusher.signal(signal.SIGINT)
        result = pusher.result()
        self.assertEqual(result.code, 1)
        self.assertIn("kvcache: interrupted (Interrupt)\n", result.err)
        self.assert_receives(other, pages=64)

    def test_a_pusher_that_is_killed_leaves_its_pages_to_the_next_one(self):
        server = self.serve()
        pusher = self.start_endless_push(server)
        pusher.kill()
        wait_until(lambda: re.search(r"\Akvcache: [^\n]*peer vanished[^\n]*\n\Z", server.err), "the server's line")
        self.assert_receives(server, pages=64)

    def test_what_does_not_fit_is_refused_in_words(self):
        server = self.serve()
        self.assert_one_line("kvcache", self.push(server.address, "--sequences", 1, pages=65),
                             r"\Akvcache: \S+: sequence 1 was refused: 65 pages: this cache has 64\n\Z")
        result = self.run_program("kvcache", "push", server.address, "--layers", 2, "--block-bytes", 8192)
        self.assertEqual(result.code, 1)
        self.assertIn("was refused: 2 layers of 8192 bytes: this cache has 4 of 4096\n", result.err)
        self.assert_receives(server)

    def test_a_stranger_does_not_stop_it(self):
        server = self.serve()
        self.disturb(server.address)
        self.assert_receives(server)

    def test_a_benchmark_tells_how_fast_blocks_move_and_checks_them(self):
        small = ["--blocks", 64, "--block-bytes", 4096, "--rounds", 3]
        ways = [["--tcp"], ["--tcp", "--spin"], ["--memcpy"], []] + ([["--direct"]] if self.device == "shm" else [])
        for way in ways:
            result = self.fine(self.run_program("kvcache", "bench", *small, *way, "--json"))
            said = json.loads(result.out)
            self.assertEqual((said["blocks"], len(said["rounds"])), (64, 3))
            self.assertGreater(said["gb_per_second"], 0)
        result = self.run_program("kvcache", "bench", *small)
        self.assertRegex(result.out, r"\A64 blocks of 4096 bytes: [\d.]+ GB/s \(median of 3 rounds, .*\)\n\Z")


class KvCacheOnGpusTest(KvCacheTest):
    """The driver has no GPU: its memory faults when the processor touches it, and its copies come late."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if options.stand_in_cuda is None:
            raise unittest.SkipTest("for --stand-in-cuda only")

    @staticmethod
    def gpu(number=0):
        return ["--memory", f"cuda:{number}", "--cuda-library", options.stand_in_cuda]

    def assert_sequences_arrive(self, receiver, pusher):
        server = self.serve(*receiver)
        result = self.push(server.address, "--sequences", 5, *pusher)
        self.assertEqual((result.code, result.err), (0, ""), f"{result}\nserver: {server.out}{server.err}")
        self.assertTrue(result.out.endswith("\n5 accepted, 0 evicted, 0 refused\n"), result)
        self.assertEqual(server.out.count(": accepted 32 pages of 4 layers, 524288 bytes\n"), 5)
        self.end_in_order(server, signal.SIGTERM)

    def assert_the_connection_outlives_evictions(self):
        server = self.serve("--evict-every", 3, *self.gpu(), pages=32)
        result = self.push(server.address, "--sequences", 9, *self.gpu())
        self.assertEqual((result.code, result.err), (0, ""), f"{result}\nserver: {server.out}{server.err}")
        self.assertEqual(re.findall(r"sequence (\d+) was evicted: ", result.out), ["3", "6", "9"], result)
        self.assertEqual(re.findall(r"sequence (\d+): accepted ", server.out), ["1", "2", "4", "5", "7", "8"])
        self.assertEqual(len(set(re.findall(r"^(.+): sequence ", server.out, re.M))), 1, server.out)
        self.assertEqual(server.err, "")


class KvCacheOnGpus(KvCacheOnGpusTest):
    def test_sequences_arrive_from_host_memory(self):
        self.assert_sequences_arrive(self.gpu(), [])

    def test_sequences_arrive_in_host_memory(self):
        self.assert_sequences_arrive([], self.gpu())

    def test_sequences_arrive_from_another_gpu(self):
        self.assert_sequences_arrive(self.gpu(0), self.gpu(1))

    def test_a_receiver_says_where_its_cache_is(self):
        self.assertRegex(self.serve(*self.gpu(1)).out,
                         r"\Aserving 64 pages of 4 layers of 4096 bytes in cuda:1 on \S+ over ")

    def test_pushers_and_receivers_of_either_kind_get_on_with_each_other(self):
        servers = [self.serve(*memory, pages=48) for memory in ([], self.gpu())]
        pushers = [self.start_push(*(server.address for server in servers), "--sequences", 4, *memory)
                   for memory in ([], self.gpu(1))]
        for pusher in pushers:
            result = self.fine(pusher.result())
            self.assertEqual(result.out.count(", to 2 of 2: "), 4)
        for server in servers:
            self.assertEqual((server.out.count(": accepted "), server.err), (8, ""))

    def test_a_pusher_keeps_its_connection_when_its_pages_are_taken_back(self):
        self.assert_the_connection_outlives_evictions()

    def test_a_pusher_that_is_killed_leaves_its_pages_to_the_next_one(self):
        server = self.serve(*self.gpu())
        self.start_endless_push(server).kill()
        wait_until(lambda: re.search(r"\Akvcache: [^\n]*peer vanished[^\n]*\n\Z", server.err), "the server's line")
        self.assert_receives(server, pages=64)

    def test_a_benchmark_also_tells_how_fast_the_copies_alone_are(self):
        small = ["--blocks", 64, "--block-bytes", 4096, "--rounds", 3, *self.gpu()]
        result = self.fine(self.run_program("kvcache", "bench", *small))
        self.assertRegex(result.out, r"\A64 blocks of 4096 bytes: [\d.]+ GB/s \(median of 3 rounds, .*\)\n"
                                     r"[\d.]+ of the copies alone, from pinned host memory to cuda:0: [\d.]+ GB/s\n\Z")
        said = json.loads(self.run_program("kvcache", "bench", *small, "--json").out)
        self.assertEqual(len(said["rounds"]), 3)
        self.assertGreater(said["copies_gb_per_second"], 0)

    def test_a_gpu_that_is_not_there_is_one_line(self):
        for verb in (["serve", self.at], ["push", self.at], ["bench"]):
            for memory, words in ((self.gpu(7), r"open cuda:7: [^\n]*2 devices"),
                                  (["--memory", "cuda", "--cuda-library", "no-such-driver.so"], "no-such-driver.so")):
                self.assert_one_line("kvcache", self.run_program("kvcache", *verb, *memory), words)


class KvCacheUsage(ProgramTest):
    def test_help_exits_with_0(self):
        self.assert_help("kvcache", "serve", "push", "bench")

    def test_wrong_usage_exits_with_2_and_one_line(self):
        here = "127.0.0.1:0"
        self.assert_wrong_usage("kvcache", [], ["frobnicate"], ["serve"], ["push"], ["serve", here, "--pages", "0"],
                                ["serve", here, "--layers", "many"], ["serve", here, "--block-bytes", "12"],
                                ["serve", here, "--block-bytes", "0"], ["serve", here, "--block-bytes", "9" * 30],
                                ["serve", here, "--evict-every", "0"], ["serve", here, "--lend-for", "0"],
                                ["push", here, "--sequences", "0"], ["push", here, "--pages", "-1"],
                                ["push", here, "--timeout", "soon"], ["bench", "--tcp", "--memcpy"], ["bench", "--spin"],
                                ["bench", "--rounds", "0"], ["bench", "--blocks", "0"],
                                *([*verb, "--memory", "gpu"] for verb in (["serve", here], ["push", here])),
                                *(["bench", "--memory", name] for name in (
                                    "", "gpu", "Host", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999")),
                                *(["bench", "--memory", "cuda", way] for way in ("--tcp", "--memcpy", "--direct")))

    def test_what_cannot_be_is_one_line(self):
        for arguments, words in ((["serve", "127.0.0.1:0", "--device", "token-ring"], "token-ring.*iwarp"),
                                 (["serve", "nonsense", "--device", "iwarp"], "nonsense"),
                                 (["push", "127.0.0.1:1", "--device", "iwarp"], "127\\.0\\.0\\.1:1.*refused"),
                                 (["bench", "--device", "token-ring"], "token-ring")):
            self.assert_one_line("kvcache", self.run_program("kvcache", *arguments), words)


class KvCacheOverShm(OverShm, KvCache):
    pass


class KvCacheOnGpusOverShm(OverShm, KvCacheOnGpus):
    pass


class KvCacheOverRails(KvCacheTest):
    device = "iwarp+iwarp"
    at = "127.0.0.1:0+127.0.0.1:0"

    def test_a_pusher_keeps_its_connection_when_its_pages_are_taken_back(self):
        server = self.serve("--evict-every", 2)
        result = self.fine(self.push(server.address, "--sequences", 6))
        self.assertIn("\n3 accepted, 3 evicted, 0 refused\n", result.out)
        self.assertEqual(len(set(re.findall(r"^(\S+): sequence ", server.out, re.M))), 1, server.out)


class KvCacheOnGpusOverRails(KvCacheOnGpusTest):
    device = "iwarp+iwarp"
    at = "127.0.0.1:0+127.0.0.1:0"

    def test_sequences_arrive_from_another_gpu(self):
        self.assert_sequences_arrive(self.gpu(0), self.gpu(1))

    def test_a_pusher_keeps_its_connection_when_its_pages_are_taken_back(self):
        self.assert_the_connection_outlives_evictions()


class Nvme(ProgramTest):
    device = "iwarp"

    def disk(self, size):
        path = self.here / "disk.img"
        with path.open("wb") as file:
            file.truncate(size)
        return path.name

    def serve(self, *arguments):
        return self.start_server("nvme", "serve", "--listen", "127.0.0.1:0", *arguments, says=lambda out: "blocks of" in out)

    def test_a_target_says_what_it_serves_and_ends_in_order_at_a_signal(self):
        server = self.serve(self.disk(MIB), "--memory", "2M", "--block-size", "4096")
        self.assertRegex(server.out, r"\Aserving nqn\.2024-01\.org\.example:disk on 127\.0\.0\.1:\d+ over iwarp, \w+\n"
                                     r"namespace 1: disk\.img, 256 blocks of 4096 bytes\n"
                                     r"namespace 2: 2 MiB of memory, 512 blocks of 4096 bytes\n\Z")
        result = self.end_in_order(server, signal.SIGTERM)
        self.assertRegex(result.out, r"\n0 reads of 0 bytes, 0 writes of 0 bytes .*\n\Z")

    def test_a_file_that_grows_is_looked_at_again_at_a_signal(self):
        server = self.serve(self.disk(MIB))
        self.disk(3 * MIB)
        server.signal(signal.SIGHUP)
        wait_until(lambda: "namespace 1 has 3 MiB now\n" in server.out, "the new size")

    def test_a_read_only_file_is_served_as_such(self):
        name = self.disk(MIB)
        (self.here / name).chmod(0o400)
        server = self.serve(name, "--read-only")
        self.assertIn("2048 blocks of 512 bytes, read-only\n", server.out)

    def test_what_makes_no_sense_is_refused_in_words(self):
        for arguments, words in (
                ([], r"nothing to serve: name a file, or --memory SIZE"),
                ([self.disk(1000)], r"disk\.img has 1000 bytes, which is not a multiple of the block size 512"),
                (["--memory", "1M", "--block-size", "1000"], r"a block of 1000 bytes: .*"),
                (["--memory", "0"], r"a namespace of no bytes"),
                (["--memory", "1X"], r".*the units are K, M, G and T"),
                (["--memory", "1M", "--nqn", "disk"], r"'disk' is not a qualified name: .*"),
                (["--memory", "1M", "--allow", "host"], r"'host' is not a qualified name: .*"),
                (["--memory", "1M", "--queue-size", "1"], r"--queue-size: .*")):
            result = self.run_program("nvme", "serve", "--listen", "127.0.0.1:0", *arguments)
            self.assertEqual((result.code, result.out), (2, ""), result)
            self.assertRegex(result.err, rf"\Anvme: {words} \(nvme --help\)\n\Z")

    def test_what_is_not_there_is_named(self):
        result = self.run_program("nvme", "serve", "missing.img")
        self.assertEqual((result.code, result.out), (1, ""), result)
        self.assertRegex(result.err, r"\Anvme: open missing\.img: No such file or directory\n\Z")
        result = self.run_program("nvme", "serve", "--memory", "1M", "--listen", "192.0.2.1:0")
        self.assertEqual((result.code, result.out), (1, ""), result)
        self.assertRegex(result.err, r"\Anvme: listen on 192\.0\.2\.1:0.*\n\Z")

    def test_strangers_hurt_nobody(self):
        server = self.serve("--memory", "1M")
        address = server.out.split()[3]
        self.disturb(address)
        result = self.run_program("echo", "say", address, "hello")
        self.assertEqual(result.code, 1, result)
        wait_until(lambda: "is turned away: private data of a wrong length (1)\n" in server.out, "the rejection")
        server.signal(signal.SIGINT)
        self.assertEqual(server.result().code, 0, server.err)


class NvmeHost(ProgramTest):
    device = "iwarp"
    nqn = "nqn.2024-01.org.example:disk"

    def serve(self, *arguments):
        server = self.start_server("nvme", "serve", "--listen", "127.0.0.1:0", "--memory", "4M", "--block-size", "4096",
                                   *arguments, says=lambda out: "blocks of" in out)
        self.address = server.address

    def on(self, command, *arguments):
        return self.run_program("nvme", command, self.address, self.nqn, *arguments)

    def test_it_lists_subsystems_and_namespaces(self):
        self.serve()
        result = self.run_program("nvme", "ls", self.address)
        self.assertEqual((result.code, result.out), (0, f"{self.nqn}  nvm  rdma  {self.address}\n"), result)
        result = self.fine(self.on("ls"))
        self.assertRegex(result.out, r"\Anqn\.2024-01\.org\.example:disk: controller 2, NVMe 1\.4\.0\nmodel 'weft NVMe-oF target', "
                                     r"serial number '\w+', firmware '0\.1'\ndata in a command's capsule: 16 KiB; commands of "
                                     r"up to 256 KiB; write cache: no\nnamespace 1: 4 MiB, 1024 blocks of 4096 bytes, NGUID .*\n\Z")

    def test_a_file_comes_back_as_it_was_written(self):
        self.serve()
        source = random_file(self.here / "source", 3 * MIB)
        result = self.on("write", source, "--offset", "512K", "--verify", "--queues", 2)
        self.assertRegex(result.err, r"\Awrote 3 MiB in .*, verified\n\Z")
        result = self.on("read", self.here / "copy", "--offset", "512K", "--length", "3M", "--windows")
        self.assertEqual(result.code, 0, result)
        self.assertEqual((self.here / "copy").read_bytes(), source.read_bytes())

    def test_the_standard_output_takes_the_place_of_a_file(self):
        self.serve()
        source = random_file(self.here / "source", MIB)
        self.assertEqual(self.on("write", source).code, 0)
        words = self.command("nvme", "read", self.address, self.nqn, "-", "--length", "1M")
        said = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=True)
        self.assertEqual(said.stdout, source.read_bytes())

    def test_a_benchmark_finds_what_it_has_written(self):
        self.serve()
        result = self.fine(self.on("bench", "--operations", 500, "--seconds", 1000, "--write", 50, "--verify", "--json"))
        said = json.loads(result.out)
        self.assertEqual((said["reads"]["count"] + said["writes"]["count"], said["wrong"]), (500, 0))

    def test_what_the_target_does_not_have_is_told_in_words(self):
        self.serve()
        (self.here / "odd").write_bytes(bytes(1000))
        (self.here / "big").write_bytes(bytes(5 * MIB))
        for arguments, code, words in (
                (("read", "x", "--namespace", 7), 2, f"{self.nqn} has no namespace 7: there are 1 (nvme --help)"),
                (("read", "x", "--offset", 512), 2,
                 "the offset is 512 bytes, and blocks of namespace 1 have 4096 (nvme --help)"),
                (("read", "x", "--offset", "8M"), 2,
                 "the offset 8388608 is beyond the end of namespace 1, which has 4194304 bytes (nvme --help)"),
                (("read", "x", "--offset", "1M", "--length", "4M"), 2,
                 "4194304 bytes from 1048576 on: namespace 1 ends 1048576 bytes before that (nvme --help)"),
                (("write", "odd"), 2, "the size of 'odd' is 1000 bytes, and blocks of namespace 1 have 4096 (nvme --help)"),
                (("write", "big"), 2,
                 "'big' has 5242880 bytes, and namespace 1 has room for 4194304 from 0 on (nvme --help)"),
                (("write", "missing"), 1, "open missing: No such file or directory"),
                (("bench", "--size", 512), 2, "commands of 512 bytes: namespace 1 has blocks of 4096 (nvme --help)")):
            result = self.on(*arguments)
            self.assertEqual((result.code, result.out, result.err), (code, "", f"nvme: {words}\n"), arguments)
        result = self.run_program("nvme", "ls", self.address, "nqn.2024-01.io.weft:other")
        self.assertEqual((result.code, result.err), (1, f"nvme: {self.address} has no subsystem 'nqn.2024-01.io.weft:other' "
                                                        "for this host (connect parameters invalid (0x182))\n"))
        self.assertEqual(self.run_program("nvme", "ls", self.address, "disk").code, 2)

    def test_a_read_only_disk_is_not_written(self):
        random_file(self.here / "disk.img", MIB)
        random_file(self.here / "source", 4096)
        self.serve("disk.img", "--read-only")
        for command in (("write", "source"), ("bench", "--write", 10)):
            result = self.on(*command)
            self.assertEqual((result.code, result.err), (2, "nvme: namespace 1 is read-only (nvme --help)\n"), result)


class NvmeHostOverShm(OverShm, NvmeHost):
    pass


class Recorder(unittest.TextTestResult):
    """Keeps the cases in the form of GoogleTest's report."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.root = ElementTree.Element("testsuites")
        self.began = time.monotonic()  # a class may be skipped before the first test

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def record(self, test, result="completed", failure=None):
        suite, _, name = test.id().rpartition(".")
        case = ElementTree.SubElement(self.root, "testcase", classname=suite.split(".")[-1],
                                      name=name.removeprefix("test_"), status="run", result=result,
                                      time=f"{time.monotonic() - self.began:.3f}")
        if failure is not None:
            ElementTree.SubElement(case, "failure", message=str(failure[1]))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.record(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.record(test, failure=err)

    def addError(self, test, err):
        super().addError(test, err)
        self.record(test, failure=err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.record(test, result="skipped")


def cases_of(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from cases_of(each)
        else:
            yield each


def is_repeated(case):
    """Whether another class has the same test, for another transport or device."""
    return case._testMethodName not in vars(type(case))


def main():
    global options
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=lambda text: Path(text).resolve(), required=True, help="where the examples are")
    parser.add_argument("--stand-in-cuda", type=lambda text: Path(text).resolve(), help="a CUDA driver without a GPU")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--sanitized", action="store_true", help="memory use says nothing")
    parser.add_argument("--share", default="1/1", metavar="K/N", help="each Nth test, from the Kth on")
    parser.add_argument("--only", choices=("once", "repeated"), help="each test for one transport, or for all others")
    parser.add_argument("tests", nargs="*", help="CLASS or CLASS.test_name")
    options = parser.parse_args()
    loader = unittest.defaultTestLoader
    module = sys.modules[__name__]
    suite = loader.loadTestsFromNames(options.tests, module) if options.tests else loader.loadTestsFromModule(module)
    cases = [each for each in cases_of(suite) if not options.only or is_repeated(each) == (options.only == "repeated")]
    share, shares = map(int, options.share.split("/"))
    suite = unittest.TestSuite(cases[share - 1::shares])
    result = unittest.TextTestRunner(resultclass=Recorder, verbosity=2).run(suite)
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(result.root).write(options.report)
    sys.exit(0 if result.wasSuccessful() else 1)


main()
