# SPDX-License-Identifier: Apache-2.0
"""The RDMA device of the machine that the demo uses too, where there is one."""

import contextlib
import fcntl
import socket
import struct
from pathlib import Path

SIOCGIFADDR = 0x8915  # netdevice(7)


def address_of(interface):
    request = struct.pack("16s24x", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])


def find():
    """Its name for weft and an IPv4 address of it, of the first one whose first port is active, else None."""
    for device in sorted(Path("/sys/class/infiniband").glob("*")):
        port = device / "ports/1"
        if "ACTIVE" not in (port / "state").read_text():
            continue
        for interface in sorted((port / "gid_attrs/ndevs").glob("*")):
            with contextlib.suppress(OSError):  # an empty entry of the table, or an interface without such an address
                return f"verbs:{device.name}", address_of(interface.read_text().strip())
    return None
