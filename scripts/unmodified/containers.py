# SPDX-License-Identifier: Apache-2.0
"""Real runc containers for the proofs with unmodified programs.

A container here is what a pod of the `restricted` standard gets: uid other than 0, no capability,
no-new-privileges, the default seccomp profile, its own PID, IPC, UTS, mount, cgroup and network
namespace and its own /dev/shm, and a device cgroup with the nodes of its GPUs only. Its main
program is PID 1. Its root file system is the machine's, read-only, without /dev, /proc, /sys, /run,
/root and /tmp. Settings relax single rules, as the rows of the published tables do.

Needs root, `runc` and nothing else. Distinct objects: safe. Shared objects: unsafe.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time

# Namespaces of the machine that a container may keep.
HOST = "host"
# Folders of the machine's root that containers do not get.
SKIPPED = frozenset(
    "boot dev etc home lost+found media mnt proc root run srv sys tmp".split(" ")  # noqa: SIM905
)
CLONE_NEWNET = 0x40000000
# In the order of their numbers.
CAPABILITIES = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ
PERFMON BPF CHECKPOINT_RESTORE
"""


@dataclasses.dataclass
class Setting:
    """What differs from container to container."""

    # Minors of /dev/nvidiaN that it may open.
    gpus: list = dataclasses.field(default_factory=lambda: [0])
    uid: int = 1000
    env: dict = dataclasses.field(default_factory=dict)
    mounts: list = dataclasses.field(default_factory=list)  # (host path, path inside, writable)
    pid: str = ""  # "", HOST or the path of a namespace
    ipc: str = ""
    net: str = ""
    shm: str = ""  # a folder of a tmpfs of the machine to mount at /dev/shm; "": its own
    privileged: bool = False
    preload: str = ""  # a library for /etc/ld.so.preload
    hostname: str = "unmodified"


def device_nodes(minors):
    names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{minor}" for minor in minors)]
    return [f"/dev/{name}" for name in names if os.path.exists(f"/dev/{name}")]


def all_minors():
    return sorted(
        int(name[6:])
        for name in os.listdir(os.environ.get("GPUSHM_DEV_ROOT", "/dev"))
        if name.startswith("nvidia") and name[6:].isdigit()
    )


def python_home():
    """Directories of the interpreter in folders that are not mounted as a whole."""
    places = {
        os.path.realpath(sys.executable),
        os.path.realpath(sys.base_prefix),
        os.path.realpath(sys.prefix),
    }
    return sorted(
        {"/" + "/".join(p.split("/")[1:4]) for p in places if p.split("/")[1] in SKIPPED - {"etc"}}
    )


def unwanted_in_etc(directory, names):
    """Secrets, the machine's own preloaded libraries, and special files."""
    kept = []
    for name in names:
        mode = os.lstat(os.path.join(directory, name)).st_mode
        if stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            kept.append(name)
    secret = {"shadow", "shadow-", "gshadow", "gshadow-", "ssl", "sudoers", "sudoers.d"}
    return (set(names) - set(kept)) | secret | {"ld.so.preload"}


def etc_of(setting, folder):
    """A private /etc with the line that `gpushm.dev/ipc` adds to an image's /etc/ld.so.preload."""
    # Copies what it can; what cannot be copied is of no use to the programs.
    with contextlib.suppress(shutil.Error):
        shutil.copytree("/etc", folder, symlinks=True, dirs_exist_ok=True, ignore=unwanted_in_etc)
    with open(folder + "/passwd", "a+") as users:
        users.seek(0)
        if not any(line.split(":")[2:3] == [str(setting.uid)] for line in users):
            users.write(f"user:x:{setting.uid}:{setting.uid}::/tmp:/bin/sh\n")
    if setting.preload:
        with open(folder + "/ld.so.preload", "w") as out:
            out.write(setting.preload + "\n")


def bind(source, destination, writable=False):
    return {
        "destination": destination,
        "type": "bind",
        "source": source,
        "options": ["rbind", "rw" if writable else "ro", "nosuid", "rprivate"],
    }


def file_system(kind, destination, *options):
    return {
        "destination": destination,
        "type": kind,
        "source": kind,
        "options": ["nosuid", *options],
    }


def capabilities_of_this_process():
    with open("/proc/self/status") as lines:
        mask = next(int(line.split()[1], 16) for line in lines if line.startswith("CapBnd"))
    names = CAPABILITIES.split()
    return ["CAP_" + name for bit, name in enumerate(names) if mask >> bit & 1]


def config(setting, argv, cgroup, etc, seccomp):
    mounts = [
        file_system("proc", "/proc", "noexec", "nodev"),
        file_system("tmpfs", "/dev", "strictatime", "mode=755", "size=65536k"),
        file_system("devpts", "/dev/pts", "noexec", "newinstance", "ptmxmode=0666"),
        file_system("tmpfs", "/tmp", "nodev", "mode=1777"),
        file_system("tmpfs", "/run", "nodev", "mode=755"),
        bind(setting.shm, "/dev/shm", True)
        if setting.shm
        else file_system("tmpfs", "/dev/shm", "noexec", "nodev", "mode=1777", "size=65536k"),
        bind("/sys", "/sys")
        if setting.net == HOST
        else file_system("sysfs", "/sys", "noexec", "nodev", "ro"),
        bind(etc, "/etc"),
    ]
    for name in sorted(os.listdir("/")):
        path = "/" + name
        if name not in SKIPPED and not path.startswith("/.") and os.path.isdir(path):
            mounts.append(bind(os.path.realpath(path), path))
    mounts += [bind(path, path) for path in python_home()]
    mounts += [
        bind(os.path.realpath(source), destination, writable)
        for source, destination, writable in setting.mounts
    ]
    nodes = device_nodes(setting.gpus)
    mounts += [
        {"destination": n, "type": "bind", "source": n, "options": ["bind", "rw", "rprivate"]}
        for n in nodes
    ]
    rules = [{"allow": setting.privileged, "access": "rwm"}]
    for node in nodes if not setting.privileged else []:
        number = os.stat(node).st_rdev
        rules.append(
            {
                "allow": True,
                "type": "c",
                "major": os.major(number),
                "minor": os.minor(number),
                "access": "rw",
            }
        )
    namespaces = [{"type": kind} for kind in ("uts", "mount", "cgroup")]
    for kind, place in (("pid", setting.pid), ("ipc", setting.ipc), ("network", setting.net)):
        if place != HOST:
            namespaces.append({"type": kind, **({"path": place} if place else {})})
    held = capabilities_of_this_process() if setting.privileged else []
    env = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": "/tmp",
        "USER": "user",
        "PYTHONUNBUFFERED": "1",
        **setting.env,
    }
    if "LD_LIBRARY_PATH" in os.environ:
        env.setdefault("LD_LIBRARY_PATH", os.environ["LD_LIBRARY_PATH"])
    linux = {
        "namespaces": namespaces,
        "resources": {"devices": rules},
        "cgroupsPath": cgroup,
        "rootfsPropagation": "rprivate",
    }
    if not setting.privileged:
        linux["seccomp"] = seccomp
    uid = 0 if setting.privileged else setting.uid
    return {
        "ociVersion": "1.0.2",
        "hostname": setting.hostname,
        "root": {"path": "rootfs", "readonly": True},
        "process": {
            "terminal": False,
            "user": {"uid": uid, "gid": uid},
            "args": list(argv),
            "cwd": "/",
            "env": [f"{key}={value}" for key, value in env.items()],
            "noNewPrivileges": not setting.privileged,
            # What systemd gives to services, as far as this process may.
            "rlimits": [
                {
                    "type": "RLIMIT_NOFILE",
                    "soft": 1024,
                    "hard": min(524288, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
                }
            ],
            "capabilities": {
                "bounding": held,
                "effective": held,
                "permitted": held,
                "inheritable": [],
                "ambient": [],
            },
        },
        "mounts": mounts,
        "linux": linux,
    }


class Container:
    """A started container. Ends with `close`, which also removes what it left."""

    count = 0

    def __init__(self, tools, setting, argv, label):
        Container.count += 1
        self.tools, self.label = tools, label
        self.id = f"gpushm-unmodified-{os.getpid()}-{Container.count}"
        self.folder = tempfile.mkdtemp(prefix="unmodified-")
        os.chmod(self.folder, 0o755)
        for name in ("rootfs", "etc"):
            os.mkdir(f"{self.folder}/{name}", 0o755)
        os.makedirs(f"{self.folder}/rootfs/tmp")
        os.chmod(
            f"{self.folder}/rootfs/tmp", 0o1777
        )  # runc gives a tmpfs the mode of the folder below it
        etc_of(setting, f"{self.folder}/etc")
        with open(f"{self.folder}/config.json", "w") as out:
            json.dump(
                config(setting, argv, "/" + self.id, f"{self.folder}/etc", tools.seccomp),
                out,
                indent=1,
            )
        self.start_time = time.monotonic()
        self.out = open(f"{self.folder}/out", "wb")
        self.process = subprocess.Popen(
            [
                *tools.runc,
                "--root",
                f"{self.folder}/state",
                "--log",
                f"{self.folder}/log",
                "run",
                "--bundle",
                self.folder,
                "--pid-file",
                f"{self.folder}/pid",
                self.id,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=subprocess.STDOUT,
            env=tools.runc_env,
            start_new_session=True,
        )

    def pid(self, until):
        """PID of the main program on the machine. Raises RuntimeError if it does not start in time."""
        while time.monotonic() < until:
            try:
                with open(f"{self.folder}/pid") as file:
                    return int(file.read())
            except (OSError, ValueError):
                if self.process.poll() is not None:
                    break
            time.sleep(0.005)
        raise RuntimeError(f"{self.label} did not start: {self.text()[-500:]} {self.log()[-500:]}")

    def wait(self, until):
        """The exit status, or None at the deadline."""
        try:
            return self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def text(self):
        with open(f"{self.folder}/out", errors="replace") as file:
            return file.read()

    def log(self):
        try:
            with open(f"{self.folder}/log", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def close(self):
        runc = [*self.tools.runc, "--root", f"{self.folder}/state"]
        if self.process.poll() is None:
            subprocess.run(
                [*runc, "kill", self.id, "KILL"],
                env=self.tools.runc_env,
                capture_output=True,
                timeout=20,
            )
            if self.wait(time.monotonic() + 10) is None:
                self.process.kill()
                self.process.wait(10)
        subprocess.run(
            [*runc, "delete", "--force", self.id],
            env=self.tools.runc_env,
            capture_output=True,
            timeout=20,
        )
        self.out.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclasses.dataclass
class Tools:
    """Programs that the runs need. `runc` is a command, with its loader if its libraries are carried."""

    runc: list
    seccomp: dict
    runc_env: dict

    @staticmethod
    def find(folder):
        environment = dict(os.environ)
        command = [f"{folder}/runc/runc"]
        if os.path.exists(command[0]):
            environment["LD_LIBRARY_PATH"] = f"{folder}/runc:" + environment.get(
                "LD_LIBRARY_PATH", ""
            )
        else:
            command = [shutil.which("runc") or "runc"]
        with open(f"{folder}/seccomp.json") as file:
            return Tools(command, json.load(file), environment)


def set_up(device, address=""):
    """Takes a device of this process's network namespace up, with an address of a /24 network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, value in (
            ((0x8916, address), (0x891C, "255.255.255.0")) if address else ()
        ):  # SIOCSIFADDR, SIOCSIFNETMASK
            fcntl.ioctl(
                any_socket,
                request,
                struct.pack("16sHH4s8x", device, socket.AF_INET, 0, socket.inet_aton(value)),
            )
        fcntl.ioctl(
            any_socket, 0x8914, struct.pack("16sH14x", device, 0x1 | 0x40)
        )  # SIOCSIFFLAGS: up, running


def attribute(kind, value):
    return struct.pack("<HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def link(one, two, device=b"pod0"):
    """Joins two `Network`s by a pair of virtual devices, like two pods of a node. Raises OSError."""
    ends = [
        attribute(3, device + b"\0") + attribute(19, struct.pack("<I", network.pid))
        for network in (one, two)
    ]  # name, PID
    nothing = struct.pack("<BBHiII", 0, 0, 0, 0, 0, 0)
    kind = attribute(1, b"veth") + attribute(2, attribute(1, nothing + ends[1]))
    body = nothing + ends[0] + attribute(18, kind)  # IFLA_LINKINFO
    message = (
        struct.pack("<IHHII", 16 + len(body), 16, 0x1 | 0x4 | 0x200 | 0x400, 1, 0) + body
    )  # RTM_NEWLINK
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(5)
        netlink.send(message)
        error = -struct.unpack_from("<i", netlink.recv(65536), 16)[0]
    if error != 0:
        raise OSError(error, os.strerror(error) + " (a pair of virtual devices)")
    for network, address in ((one, "10.77.0.1"), (two, "10.77.0.2")):
        network.run(lambda at=address: set_up(device, at))


class Network:
    """A network namespace with the loopback device up: that of a pod, whose containers share it."""

    def __init__(self):
        ready, done = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(ready)
                if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
                    os._exit(1)
                set_up(b"lo")
                os.write(done, b"1")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(done)
        if os.read(ready, 1) != b"1":
            raise RuntimeError("cannot make a network namespace")
        os.close(ready)
        self.path = f"/proc/{self.pid}/ns/net"

    def run(self, work):
        """Calls `work` in a process of this network. Raises OSError if it fails."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with open(self.path) as file:
                    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0:
                        work()
                        status = 0
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            raise OSError(0, "cannot set up a device of a network namespace")

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
