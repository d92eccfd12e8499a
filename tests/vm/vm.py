#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command as root in a virtual machine with Debian's own kernel; see README.md beside this file."""
import argparse
import contextlib
import fcntl
import hashlib
import json
import lzma
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("WEFT_VM_CACHE") or HERE.parents[1] / "build" / "vm")

SKIPPED = 77  # as CTest is told: what it takes cannot be had here
TIMED_OUT = 124
DIED = 125

# What the guest needs to reach the host's files; the other modules it loads from there.
FIRST_MODULES = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"]
# Debian signs its modules, and to check that takes long under emulation: these go without.
STRIPPED_MODULES = ["crc32_generic", "crc32c_generic", "libcrc32c", "rdma_rxe", "rdma_ucm", "ib_uverbs", "sch_netem",
                    "veth", "virtio_net"]
PASSED_ON = re.compile(r"(WEFT|GTEST)_|(ASAN|LSAN|TSAN|UBSAN)_OPTIONS$|(HOME|LANG|PATH)$")


class Unavailable(Exception):
    """What is missing for a virtual machine, in words."""


class Died(Exception):
    """How the guest ended without a status, in words."""


class TooLate(Died):
    """It took longer than it was given."""


def output_of(*command, **options):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          **options).stdout


def need_programs():
    packages = {"qemu-system-x86_64": "qemu-system-x86", "modprobe": "kmod", "cpio": "cpio", "strip": "binutils",
                "apt-get": "apt", "dpkg-deb": "dpkg", "setpriv": "util-linux"}
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [package for program, package in packages.items() if not shutil.which(program)]
    if not busybox():
        missing.append("busybox-static")
    if missing:
        raise Unavailable(f"no virtual machine without {' '.join(missing)} (by Debian 12's names)")


def busybox():
    return shutil.which("busybox", path="/bin:/usr/bin")


@contextlib.contextmanager
def built_once(target):
    """A folder to build `target` in, which becomes it when all went well; None where it is there already."""
    if target.exists():
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        yield folder
        folder.chmod(0o755)
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Packages:
    """Debian packages that are unpacked, never installed: of the Debian that this is, or of one that is named."""

    def __init__(self, folder, suite=None):
        self.folder = folder / suite if suite else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.updated = False
        self.options = self.lists_of(suite) if suite else []

    def lists_of(self, suite):
        """The options for an apt that knows that Debian alone, from where this machine has its own."""
        sources = output_of("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
        mirror = next((each for each in sources if re.search(r"/debian/?$", each)), None)
        if not mirror:
            raise Unavailable(f"no kernel of {suite}: apt has no archive of Debian's among its sources")
        apt = self.folder / "apt"
        (apt / "lists/partial").mkdir(parents=True, exist_ok=True)
        (apt / "sources.list").write_text(f"deb {mirror} {suite} main\n")
        return ["-o", f"Dir::Etc::SourceList={apt}/sources.list", "-o", "Dir::Etc::SourceParts=-",
                "-o", f"Dir::State::Lists={apt}/lists", "-o", f"Dir::Cache={apt}"]

    def apt(self, program, *arguments, **options):
        return output_of(program, *self.options, *arguments, **options)

    def ask(self, *command, **options):
        """What apt says; with fresh lists where the ones here know nothing, or what the archive has no more."""
        try:
            return self.apt(*command, **options)
        except subprocess.CalledProcessError as refusal:
            if self.updated:
                raise Unavailable(f"{shlex.join(command)}: {refusal.stderr.strip()}") from refusal
        self.updated = True
        try:
            self.apt("apt-get", "-qq", "update")
        except subprocess.CalledProcessError as refusal:
            raise Unavailable(f"apt's lists are out of date, and cannot be renewed: {refusal.stderr.strip()}") from refusal
        return self.ask(*command, **options)

    def newest_kernel(self):
        """The release of the kernel that linux-image-amd64 stands for: 6.1.0-56-amd64, or 6.12.117+deb13-amd64."""
        known = self.folder / "release"
        if known.exists() and time.time() - known.stat().st_mtime < 24 * 3600:
            return known.read_text()
        try:
            found = re.search(r"Depends: linux-image-((?:5\.10|6\.12?)\.\S+-amd64)",
                              self.ask("apt-cache", "depends", "linux-image-amd64"))
            if not found:
                raise Unavailable("linux-image-amd64 stands for no kernel 5.10, 6.1 or 6.12; is this Debian 12 or 13?")
        except Unavailable:
            if known.exists():
                return known.read_text()
            raise
        known.write_text(found[1])
        return found[1]

    def unpack(self, name, to):
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            self.ask("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name, cwd=folder)
            for package in Path(folder).glob("*.deb"):
                output_of("dpkg-deb", "--extract", package, to)


class Kernel:
    """Debian's kernel package, unpacked: an image that QEMU boots, and the modules."""

    def __init__(self, packages):
        self.release = packages.newest_kernel()
        self.folder = packages.folder / self.release
        with built_once(self.folder) as folder:
            if folder:
                packages.unpack(f"linux-image-{self.release}", folder)
                if not (folder / "lib").exists():  # Debian 13 has the modules in /usr
                    (folder / "lib").symlink_to("usr/lib")
                (folder / "vmlinux").write_bytes(unpacked_image((folder / f"boot/vmlinuz-{self.release}").read_bytes()))
                output_of("depmod", "-b", folder, self.release)
                for module in files_of(folder, self.release, FIRST_MODULES + STRIPPED_MODULES):
                    output_of("strip", "--strip-debug", unpacked_module(Path(module)))
                output_of("depmod", "-b", folder, self.release)  # knows them by their names

    def add_siw(self, packages):
        """Builds the module siw, which Debian's kernel leaves out, of Debian's sources for that kernel."""
        with built_once(self.modules / self.release / "extra") as target:
            if not target:
                return
            with tempfile.TemporaryDirectory(dir=packages.folder) as folder:
                build_siw(packages, self.release, Path(folder))
                shutil.copy(Path(folder, "siw/siw.ko"), target)
            output_of("strip", "--strip-debug", target / "siw.ko")
        output_of("depmod", "-b", self.folder, self.release)

    @property
    def image(self):
        return self.folder / "vmlinux"

    @property
    def modules(self):
        return self.folder / "lib/modules"


def build_siw(packages, release, folder):
    for name in ["linux-source-6.1", f"linux-headers-{release}", f"linux-headers-{release.replace('amd64', 'common')}",
                 "linux-kbuild-6.1", "linux-compiler-gcc-12-x86"]:
        packages.unpack(name, folder)
    headers = folder / "usr/src"
    for makefile in headers.glob("linux-headers-*/Makefile"):  # each names the other half by where it gets installed
        makefile.write_text(makefile.read_text().replace("/usr/src/", f"{headers}/"))
    (folder / "siw").mkdir()
    output_of("tar", "-xJf", headers / "linux-source-6.1.tar.xz", "-C", folder / "siw", "--strip-components=5",
              "linux-source-6.1/drivers/infiniband/sw/siw")
    adapt_siw(folder / "siw")
    try:
        # Without debugging information in BTF's form, which needs the very kernel image with its symbols.
        output_of("make", "-C", headers / f"linux-headers-{release}", f"M={folder / 'siw'}", "CONFIG_RDMA_SIW=m",
                  "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
    except (OSError, subprocess.CalledProcessError) as failure:
        raise Unavailable(f"siw cannot be built: {getattr(failure, 'stderr', failure)}") from failure


def replaced(path, pattern, replacement):
    text, found = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
    if found != 1:
        raise Unavailable(f"siw's source is not as expected: {found} of {pattern} in {path.name}")
    path.write_text(text)


def adapt_siw(siw):
    # How it sets connections up, constants in the original, goes to /sys/module/siw/parameters.
    for name, kind in [("mpa_crc_required", "bool"), ("mpa_crc_strict", "bool"), ("peer_to_peer", "bool"),
                       ("mpa_version", "byte")]:
        replaced(siw / "siw_main.c", rf"^(?:const )?(\w+ {name}\b.*;)$", rf"\1\nmodule_param({name}, {kind}, 0644);")
        replaced(siw / "siw.h", rf"^extern (?:const )?(\w+ {name};)$", r"extern \1")
    # Between its reply to a peer and this moment nobody looks at what arrives: a quick peer's first message would lie
    # there until the second one comes.
    replaced(siw / "siw_cm.c", r"^\t\tsiw_qp_socket_assoc\(cep, qp\);\n(\t\trv = siw_cm_upcall.*ESTABLISHED, 0\);)$",
             r"""\t\tsiw_qp_socket_assoc(cep, qp);
\1
\t\tlock_sock(cep->sock->sk);
\t\tlocal_bh_disable();
\t\tcep->sock->sk->sk_data_ready(cep->sock->sk);
\t\tlocal_bh_enable();
\t\trelease_sock(cep->sock->sk);""")


def unpacked_image(bzimage):
    """The kernel inside a bzImage (the kernel's Documentation/arch/x86/boot.rst): saves the guest to unpack it.

    The bzImage itself if the kernel is packed by Zstandard, as Debian 13's."""
    setup_sectors = bzimage[0x1F1] or 4
    offset, size = struct.unpack_from("<II", bzimage, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    packed = bzimage[begin:begin + size]
    return lzma.LZMADecompressor().decompress(packed) if packed.startswith(b"\xFD7zXZ") else bzimage


def unpacked_module(file):
    """Of Debian 13, which packs its modules, so that busybox's insmod does not know them."""
    if file.suffix != ".xz":
        return file
    unpacked = file.with_suffix("")
    unpacked.write_bytes(lzma.decompress(file.read_bytes()))
    file.unlink()
    return unpacked


def files_of(root, release, modules):
    """The files of modules and of what they depend on, in the order in which they can be loaded."""
    files = {}
    for module in modules:
        for line in output_of("modprobe", "-d", root, "-S", release, "--show-depends", module).splitlines():
            action, *rest = line.split()
            if action == "insmod":
                files[rest[0]] = None
    return list(files)


def initramfs(kernel):
    """What the guest starts with: busybox, the first modules and init.sh."""
    init = HERE / "init.sh"
    parts = hashlib.sha256(init.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]
    target = kernel.folder / f"initramfs-{parts}"
    with built_once(target) as folder:
        if folder:
            root = folder / "root"
            for name in ["bin", "dev", "proc", "sys", "modules", "lower", "upper", "root"]:
                (root / name).mkdir(parents=True)
            shutil.copy(busybox(), root / "bin/busybox")
            shutil.copy(init, root / "init")
            (root / "init").chmod(0o755)
            modules = files_of(kernel.folder, kernel.release, FIRST_MODULES)
            for module in modules:
                shutil.copy(module, root / "modules")
            (root / "modules/order").write_text("".join(f"{Path(module).name}\n" for module in modules))
            names = output_of("find", ".", cwd=root)
            with open(folder / "cpio", "wb") as archive:
                subprocess.run(["cpio", "--create", "--format=newc", "--owner=0:0", "--quiet"], check=True, cwd=root,
                               input=names.encode(), stdout=archive)
            shutil.rmtree(root)
    return target / "cpio"


def prepare(devices, suite):
    """The kernel and the initramfs; made, where they are not there yet, by one process at a time."""
    need_programs()
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = Packages(CACHE, suite)
        kernel = Kernel(packages)
        if devices == "siw":
            kernel.add_siw(packages)
        return kernel, initramfs(kernel)


def accelerator(instructions):
    """Emulation, which is the same everywhere; with `instructions`, to the instruction."""
    if instructions:
        return ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]
    return ["-accel", "tcg,thread=multi"]


class Pair:
    """Two guests, 1 and 2, with cables from one to the other, and a folder that they share besides."""

    def __init__(self, folder, cables):
        self.folder = Path(folder)
        self.files = self.folder / "files"
        self.files.mkdir()
        self.cables = cables
        self.guests = []

    def hardware(self, guest):
        return [*(word for cable in range(self.cables) for word in self.end_of(cable, guest)),
                "-qmp", f"unix:{guest.control}/qmp,server=on,wait=off", *share("pair", self.files)]

    def end_of(self, cable, guest):
        ends = [f"{end}.type=unix,{end}.path={self.folder}/cable{cable}-end{number}"
                for end, number in (("local", guest.number), ("remote", 3 - guest.number))]
        return ["-netdev", f"dgram,id=cable{cable},{','.join(ends)}",
                "-device", f"virtio-net-pci,netdev=cable{cable},mac=02:{78 + cable}:00:00:00:0{guest.number}"]

    def move(self, request, guest):
        """Pulls and plugs in cables as the guest asks; false if that cannot be understood: README.md."""
        words = re.fullmatch(r"(far )?cable(\d?) (up|down)\n", request.decode(errors="replace"))
        if not words or int(words[2] or 0) >= self.cables:
            return False
        far, which, state = words.groups()
        end = self.guests[2 - guest.number] if far else guest
        for cable in [which] if which else range(self.cables):
            end.control_qemu("set_link", name=f"cable{cable}", up=state == "up")
        return True


class Guest:
    """One run of a command in a virtual machine of its own, or in one of a pair."""

    def __init__(self, machine, out, options, number=0, pair=None):
        kernel, first_files = machine
        self.number = number
        self.pair = pair
        self.killed = False
        self.control = Path(tempfile.mkdtemp(prefix="weft-vm-"))
        self.console = self.control / "console"
        self.write_command(kernel, options)
        output, requests = Port("output", 1), Port("host", 2)
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL",  # a guest does not outlive this process
             "qemu-system-x86_64", *accelerator(options.instructions), "-cpu", "max", "-smp", str(options.cpus),
             *self.hardware_memory(options), "-nodefaults", "-display", "none", "-no-reboot", "-monitor", "none",
             "-kernel", kernel.image, "-initrd", first_files,
             "-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check",
             "-serial", f"file:{self.console}", *share("root", "/", "readonly=on,multidevs=remap"),
             *share("control", self.control), *share("out", out), "-device", "virtio-serial-pci",
             *output.hardware(), *requests.hardware(), *(pair.hardware(self) if pair else []),
             *(["-drive", f"file={options.disk},format=raw,if=virtio"] if options.disk else [])],
            stdin=subprocess.DEVNULL, pass_fds=[output.far_end, requests.far_end])
        self.threads = [threading.Thread(target=work, args=[port.opened()])
                        for work, port in ((self.copy_output, output), (self.grant_requests, requests))]
        for thread in self.threads:
            thread.start()

    def hardware_memory(self, options):
        """With --persistent, an NVDIMM beside it."""
        if not options.persistent:
            return ["-m", str(options.memory)]
        file = self.control / "nvdimm"
        with open(file, "wb") as image:
            image.truncate(options.persistent << 20)
        return ["-m", f"{options.memory},slots=1,maxmem={options.memory + options.persistent}M", "-machine", "pc,nvdimm=on",
                "-object", f"memory-backend-file,id=nvdimm,share=on,mem-path={file},size={options.persistent}M",
                "-device", "nvdimm,memdev=nvdimm"]

    def write_command(self, kernel, options):
        environment = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
        if self.number:
            environment["WEFT_VM_GUEST"] = str(self.number)
            environment["WEFT_VM_CABLES"] = str(self.pair.cables)
        exports = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
        session = ["exec", "bash", str(HERE / "guest.sh"), str(kernel.modules), options.devices, *options.command]
        (self.control / "command").write_text(f"{''.join(exports)}cd {shlex.quote(os.getcwd())}\n{shlex.join(session)}\n")

    def copy_output(self, source):
        """Of two guests, line by line and with their numbers."""
        with source:
            while piece := source.readline() if self.number else source.read1(65536):
                sys.stdout.buffer.write((b"%d: " % self.number if self.number else b"") + piece)
                sys.stdout.buffer.flush()

    def grant_requests(self, source):
        """Does what the guest asks of its host: README.md."""
        with source:
            for request in source:
                if request == b"kill\n":
                    self.killed = True
                    self.process.kill()
                elif not (self.pair and self.pair.move(request, self)):
                    print(f"vm: the guest asks for what there is not: {request!r}", file=sys.stderr)

    def control_qemu(self, command, **arguments):
        """See qemu-qmp-ref(7)."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{self.control}/qmp")
            with connection.makefile("rw") as stream:
                stream.readline()  # a greeting
                for each in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                    stream.write(json.dumps(each) + "\n")
                    stream.flush()
                    answer = json.loads(stream.readline())
        if "error" in answer:
            print(f"vm: {command}: {answer['error']['desc']}", file=sys.stderr)

    def wait(self, end):
        """The command's exit status. At `end` the guest is ended."""
        name = f"guest {self.number}" if self.number else "the guest"
        try:
            self.process.wait(max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired as late:
            raise TooLate(f"{name} has taken too long, and was ended{self.last_words()}") from late
        finally:
            self.end()
        status = self.control / "status"
        if self.killed:
            return 0
        if not status.exists():
            raise Died(f"{name} ended without a status (QEMU's is {self.process.returncode}){self.last_words()}")
        return int(status.read_text())

    def last_words(self):
        lines = self.console.read_text(errors="replace").splitlines()[-80:] if self.console.exists() else []
        return "; its console's last lines:\n" + "\n".join(lines) if lines else "; its console says nothing"

    def end(self):
        self.process.kill()
        self.process.wait()
        for thread in self.threads:
            thread.join()

    def close(self):
        self.end()
        shutil.rmtree(self.control, ignore_errors=True)


class Port:
    """A way for bytes out of a guest, /dev/virtio-ports/NAME there: the serial port takes seconds for a megabyte."""

    def __init__(self, name, number):
        self.name, self.number = name, number
        self.near_end, self.far_end = os.pipe()

    def hardware(self):
        return ["-add-fd", f"fd={self.far_end},set={self.number}",
                "-chardev", f"file,id={self.name},path=/dev/fdset/{self.number},append=on",
                "-device", f"virtserialport,chardev={self.name},name={self.name}"]

    def opened(self):
        """What comes out, once QEMU has the other end."""
        os.close(self.far_end)
        return open(self.near_end, "rb")


def share(tag, folder, more="multidevs=remap"):
    return ["-virtfs", f"local,path={folder},mount_tag={tag},security_model=none,{more}"]


def parsed(arguments):
    parser = argparse.ArgumentParser(prog="vm", description=__doc__)
    parser.add_argument("--cpus", type=int, help="virtual processors; 2, or 4 for two devices")
    parser.add_argument("--memory", type=int, default=1024, metavar="MIB", help="1024")
    parser.add_argument("--persistent", type=int, default=0, metavar="MIB",
                        help="an NVDIMM: README.md; none")
    parser.add_argument("--disk", metavar="FILE", help="the image of a disk: README.md; none")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="after which the guest is killed; 120")
    parser.add_argument("--devices", choices=["none", "rxe", "siw"], default="none",
                        help="an RDMA device at each end of a cable")
    parser.add_argument("--debian", metavar="SUITE", help="whose kernel, such as bullseye (5.10) or trixie (6.12); this one's")
    parser.add_argument("--two", action="store_true", help="two guests with a cable from one to the other")
    parser.add_argument("--cables", type=int, choices=range(1, 5), default=1, help="so many, of --two guests; 1")
    parser.add_argument("--instructions", action="store_true",
                        help="the guest's clock counts instructions, a nanosecond each; one processor")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("which command?")
    if options.instructions:
        if options.cpus not in (None, 1):
            parser.error("--instructions are counted on one processor")
        options.cpus = 1
    # Two busy pollers on fewer than four starve the kernel's own threads, which are rxe's wire.
    options.cpus = options.cpus or (2 if options.devices == "none" or options.two else 4)
    return options


def run(options):
    with contextlib.ExitStack() as at_end:
        out = os.environ.get("WEFT_VM_OUT") or at_end.enter_context(tempfile.TemporaryDirectory(prefix="weft-vm-out-"))
        Path(out).mkdir(parents=True, exist_ok=True)
        machine, end = prepare(options.devices, options.debian), time.monotonic() + options.timeout
        guests, pair = [], None
        if options.two:
            pair = Pair(at_end.enter_context(tempfile.TemporaryDirectory(prefix="weft-vm-pair-")),
                        options.cables)
            pair.guests = guests
        for number in (1, 2) if options.two else (0,):
            guests.append(Guest(machine, Path(out).resolve(), options, number, pair))
            at_end.callback(guests[-1].close)
        return max(guest.wait(end) for guest in guests)


def main():
    try:
        return run(parsed(sys.argv[1:]))
    except Unavailable as missing:
        print(f"vm: {missing}")
        return SKIPPED
    except Died as death:
        print(f"vm: {death}", file=sys.stderr)
        return TIMED_OUT if isinstance(death, TooLate) else DIED


if __name__ == "__main__":
    sys.exit(main())
