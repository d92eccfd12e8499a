#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""seeds.py: writes the seeds that are frames and headers, one file each, into corpus/<FUZZER>.

The seeds of the other fuzzers are not here: their inputs are programmes, and were cut down from what libFuzzer found.
"""
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def mpa(key, flags, revision, private):
    return key + bytes([flags, revision]) + struct.pack(">H", len(private)) + private


def tagged(opcode, stag, offset, payload=b""):
    return struct.pack(">BBIQ", 0xC1, 0x40 | opcode, stag, offset) + payload


def untagged(opcode, queue, sequence, payload=b"", last=True, offset=0):
    return struct.pack(">BBIIII", 0x41 if last else 0x01, 0x40 | opcode, 0, queue, sequence, offset) + payload


def read_body(size):
    return struct.pack(">IQIIQ", 7, 0, size, 9, 0x1000)


def atomic_body(operation):
    return struct.pack(">IIIQQQQQ", operation, 1, 9, 0x1000, 1, 0, 0, (1 << 64) - 1)


def greeting(depth=16, size=4096, features=0):
    return b"weft" + struct.pack("<BBHI", 1, features, depth, size) + bytes(16)


def shm_frame(kind, reason=0, version=1, reads=(0, 0), ring=0, private=b""):
    return b"weft-shm" + struct.pack("<HBBHHI", version, kind, reason, *reads, ring) + private


def region(address, length, version=2, usage=0x24, keys=(b"\4\3\2\1",)):
    """With one place for each key, and padded to the most that a region takes: what follows are programmes."""
    places = b"".join(struct.pack("<BBQ", fabric, len(key), address) + key for fabric, key in enumerate(keys))
    return (struct.pack("<BBHQ", version, len(keys), usage, length) + places).ljust(88, b"\0")


def resp(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def over(kind, said, piece=3):
    return bytes([piece, kind]) + said


RESP, TEXT = 0, 1


def structure(number, size, fields=()):
    data = bytearray(size)
    for offset, field in fields:
        data[offset:offset + len(field)] = field
    return bytes([0, number]) + bytes(data)


NQN = b"nqn.2024-01.org.example:disk"


def place(kind, value):
    return bytes([kind]) + struct.pack(">Q", value)


REQUEST, REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
DEPTHS = struct.pack(">HH", 0x8010, 0xC010)

SEEDS = {
    "iwarp_codec_fuzzer": {
        "request_1": mpa(REQUEST, 0x40, 1, b"hello"),
        "request_2": mpa(REQUEST, 0x50, 2, DEPTHS + greeting()),
        "request_largest": mpa(REQUEST, 0x10, 2, DEPTHS + bytes(508)),
        "reply_1": mpa(REPLY, 0x00, 1, b""),
        "reply_2": mpa(REPLY, 0x50, 2, DEPTHS),
        "reply_rejected": mpa(REPLY, 0x30, 2, DEPTHS + b"no"),
        "too_large": mpa(REQUEST, 0x40, 2, bytes(513)),
        "write": tagged(0, 0x12345678, 1 << 40, b"payload"),
        "read_response": tagged(2, 7, 0, b"payload"),
        "send": untagged(3, 0, 1, b"payload"),
        "read_request": untagged(1, 1, 1, read_body(4096)),
        "fetch_add": untagged(10, 1, 1, atomic_body(0)),
        "compare_swap": untagged(10, 1, 1, atomic_body(2)),
        "atomic_response": untagged(11, 3, 1, struct.pack(">IQ", 1, 42)),
        "immediate": untagged(8, 0, 1, struct.pack(">II", 7, 0)),
        "terminate_crc": bytes([0x20, 0x02, 0, 0]),
        "terminate_write": bytes([0x11, 0x01, 0xC0, 0, 0, 21]) + tagged(0, 9, 0),
        "terminate_read": bytes([0x01, 0x01, 0xE0, 0, 0, 46]) + untagged(1, 1, 1, read_body(11)),
        "terminate_siw": bytes([0x11, 0x01, 0x03, 0, 0, 8]) + tagged(0, 7, 9),
        "terminate_siw_bare": bytes([0x20, 0x06, 0, 0]),
    },
    "native_protocol_fuzzer": {
        "greeting": greeting(),
        "greeting_of_all_features": greeting(features=0xFF),
        "greeting_and_words": greeting() + b"words of the user",
        "greeting_of_nothing": greeting(depth=0),
        "greeting_too_large": greeting(size=(1 << 30) + 1),
        "data": b"payload" + struct.pack("<II", 1, 16),
        "data_with_immediate": b"payload" + struct.pack("<III", 0x01020304, 4, 16),
        "data_without_its_immediate": b"pay" + struct.pack("<II", 4, 16),
        "credits": struct.pack("<II", 2, 17),
        "close": struct.pack("<II", 3, 0xFFFFFFFF),
        "close_with_payload": b"x" + struct.pack("<II", 3, 0),
    },
    "kv_clients_fuzzer": {
        "set_get": over(RESP, resp(b"SET", b"a", b"1", b"PX", b"1000", b"NX") + resp(b"GET", b"a")),
        "pipeline": over(RESP, resp(b"MSET", b"a", b"1", b"b", b"2") + resp(b"MGET", b"a", b"b", b"c") +
                         resp(b"INCRBY", b"a", b"-7") + resp(b"DEL", b"a", b"b")),
        "expiries": over(RESP, resp(b"SETEX", b"a", b"10", b"x") + resp(b"EXPIRE", b"a", b"5", b"LT") +
                         resp(b"PTTL", b"a") + resp(b"PERSIST", b"a") + resp(b"TTL", b"a")),
        "flush": over(RESP, resp(b"SET", b"a", b"1") + resp(b"FLUSHALL", b"ASYNC") + resp(b"DBSIZE")),
        "about_itself": over(RESP, resp(b"HELLO", b"3", b"SETNAME", b"x") + resp(b"CLIENT", b"LIST") +
                             resp(b"COMMAND", b"INFO", b"get") + resp(b"CONFIG", b"GET", b"save") + resp(b"INFO")),
        "lines": over(RESP, b"set a 1\r\nget  a\nping\r\n\r\nquit\r\n"),
        "not_a_number": over(RESP, b"*x\r\n"),
        "too_long": over(RESP, b"*1\r\n$99999999\r\n"),
        "text": over(TEXT, b"set a 7 0 1\r\nx\r\nget a\r\nget b\r\n"),
        "text_too_long": over(TEXT, b"get" + b" " * 256 + b"a\r\n", 40),
        "text_expired": over(TEXT, b"set a 0 -1 1\r\nx\r\nget a\r\nset a 0 0 x\r\n"),
    },
    "nvme_structures_fuzzer": {
        "read": structure(0, 64, [(0, b"\2\x40\1"), (4, b"\1"), (32, b"\0\x10\0\1\2\3\4\x40"), (48, b"\7")]),
        "write_in_capsule": structure(0, 64, [(0, b"\1\x40\1"), (4, b"\1"), (32, b"\0\2"), (39, b"\1")]),
        "connect": structure(0, 64, [(0, b"\x7f\x40\1"), (4, b"\1"), (32, b"\0\4"), (39, b"\1"), (44, b"\x1f")]),
        "set_up": structure(1, 1024, [(2, b"\1\0\x20\0\x1f"), (16, b"\xff\xff"), (256, NQN), (512, NQN)]),
        "ranges": structure(2, 32, [(4, b"\x08"), (8, b"\x10"), (20, b"\1"), (24, b"\x20")]),
        "namespaces": structure(3, 4096, [(0, b"\1\0\0\0\2\0\0\0\5")]),
        "any_namespace": structure(3, 4096, [(0, b"\xff\xff\xff\xff")]),
        "discovery": structure(4, 1024, [(0, b"\1\1\2"), (32, b"4420"), (256, NQN), (512, b"10.77.0.2")]),
        "identity": structure(5, 4096, [(0, b"\0\x10"), (128, b"\0\0\x09\0"), (768, NQN)]),
        "error_and_health": structure(6, 512, [(0, b"\1"), (8, b"\1\0\2\0\4")]),
    },
    "shm_frame_fuzzer": {
        "hello": shm_frame(1, reads=(16, 16), ring=256 << 10, private=greeting()),
        "hello_largest": shm_frame(1, reads=(65535, 65535), ring=16 << 20, private=bytes(56)),
        "accept": shm_frame(2, reads=(3, 4), ring=16 << 10),
        "reject": shm_frame(3, private=b"weft: no receives left"),
        "reject_user": shm_frame(3, reason=1),
        "ready": shm_frame(4),
        "later_version": shm_frame(1, version=2),
    },
    "remote_region_fuzzer": {
        "whole": region(0x1000, 4096) + place(0, 0) + place(0, 4096),
        "beyond": region(0x1000, 4096) + place(0, 4096) + place(0, 1),
        "shrinking": region(0, 1 << 40) + b"".join(place(2, 3 + i) + place(1, i) for i in range(6)),
        "at_the_end": region((1 << 64) - 16, 16) + place(3, 0) + place(1, 0),
        "all_there_is": region(0, (1 << 64) - 1) + place(1, 1) + place(2, 1) + place(3, 3) + place(3, 2),
        "wraps": region((1 << 64) - 16, 17),
        "empty": region(0x1000, 0),
        "of_many_fabrics": region(0x1000, 4096, keys=(b"\1\0\0\0", b"\xff" * 8, b"\2" * 8, b"\3" * 4)) + place(0, 8),
        "with_a_long_small_key": region(0x1000, 4096, keys=(b"\1" + b"\0" * 7,)),
        "with_a_key_of_no_length": region(0x1000, 4096, keys=(b"\1" * 5,)),
        "with_a_key_of_32_bytes": region(0x1000, 4096, keys=(b"\3" * 32,)),
        "of_no_fabric": region(0x1000, 4096, keys=()),
        "of_too_many_fabrics": region(0x1000, 4096, keys=(b"\1\0\0\0",) * 5),
        "earlier_version": region(0x1000, 16, version=1),
        "later_version": region(0x1000, 16, version=3),
        "unknown_usage": region(0x1000, 16, usage=0x8000),
        "short": region(0x1000, 16)[:25],
    },
}

for fuzzer, seeds in SEEDS.items():
    (CORPUS / fuzzer).mkdir(parents=True, exist_ok=True)
    for name, seed in seeds.items():
        (CORPUS / fuzzer / name).write_bytes(seed)
