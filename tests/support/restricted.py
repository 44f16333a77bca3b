"""`python restricted.py UNIT COMMAND...`: run a command under the restrictions of a unit, without a service manager.

Those that the kernel makes of system calls, as systemd's documentation has them, by libseccomp, on which systemd itself
rests. Not those that are made of mounts: MOUNTS. A restriction that this file does not know is an error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

MOUNTS = {"ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectControlGroups"}
"""They need a mount namespace of the service."""
OTHERS = {"AmbientCapabilities", "KeyringMode", "RemoveIPC", "SystemCallErrorNumber", "SystemCallArchitectures"}
"""Empty here already; what the manager does when the service ends; and what libseccomp does by itself."""
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NOT_EQUAL, EQUAL, MASKED = 1, 4, 7
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "mkdir": 1, "mkdirat": 2, "mknod": 1, "mknodat": 2, "creat": 1}
"""At which argument a call has the rights of a file."""


class Argument(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def restrictions(unit: Path) -> list[tuple[str, str]]:
    """The settings below the comment that begins the restrictions."""
    text = unit.read_text().split("# Restrictions")[1].split("[Install]")[0]
    pairs = [line.partition("=") for line in text.splitlines()[1:] if line and not line.startswith("#")]
    return [(name, value) for name, _, value in pairs]


def calls_of(group: str) -> set[str]:
    """The system calls of one of systemd's groups, as it names them itself."""
    listed = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True).stdout
    found = {line.strip() for line in listed.splitlines()[1:] if line.strip() and not line.strip().startswith("#")}
    return {name for each in found for name in (calls_of(each) if each.startswith("@") else {each})}


class Filter:
    def __init__(self) -> None:
        self.library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.library.seccomp_init(ALLOW))

    def deny(self, name: str, *arguments: tuple[int, int, int, int], code: int = errno.EPERM) -> None:
        """A call that this machine does not have needs no rule."""
        number = self.library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            array = (Argument * len(arguments))(*(Argument(*one) for one in arguments))
            failed = self.library.seccomp_rule_add_array(self.context, ERRNO | code, number, len(arguments), array)
            assert not failed, (name, failed)

    def load(self) -> None:
        assert not self.library.seccomp_load(self.context)

    def add(self, setting: str, value: str) -> None:
        match setting:
            case "SystemCallFilter":
                assert value.startswith("~")
                for group in value[1:].split():
                    for name in sorted(calls_of(group)):
                        self.deny(name)
            case "ProtectClock" | "ProtectKernelModules":
                self.add("SystemCallFilter", "~@clock" if setting == "ProtectClock" else "~@module")
            case "ProtectHostname":
                self.deny("sethostname")
                self.deny("setdomainname")
            case "LockPersonality":
                self.deny("personality", (0, NOT_EQUAL, 0, 0))
            case "RestrictRealtime":
                for policy in (os.SCHED_FIFO, os.SCHED_RR, 6):
                    self.deny("sched_setscheduler", (1, EQUAL, policy, 0))
            case "RestrictAddressFamilies":
                allowed = {FAMILIES[name] for name in value.split()}
                for family in set(range(1, 46)) - allowed:
                    self.deny("socket", (0, EQUAL, family, 0), code=errno.EAFNOSUPPORT)
            case "RestrictSUIDSGID":
                self._no_setuid_files()
            case _:
                raise SystemExit(f"restricted.py does not know {setting}=")

    def _no_setuid_files(self) -> None:
        for bit in (0o4000, 0o2000):
            for name, at in MODES.items():
                self.deny(name, (at, MASKED, bit, bit))
            for name, flags in (("open", 1), ("openat", 2)):
                self.deny(name, (flags, MASKED, os.O_CREAT, os.O_CREAT), (flags + 1, MASKED, bit, bit))
        self.deny("openat2", code=errno.ENOSYS)


def main() -> None:
    unit, *command = sys.argv[1:]
    libc = ctypes.CDLL(None)
    filtered = Filter()
    for setting, value in restrictions(Path(unit)):
        if setting == "NoNewPrivileges":
            assert not libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        elif setting == "CapabilityBoundingSet":
            for capability in range(64 if os.geteuid() == 0 else 0):  # who is not root has none
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        elif setting not in MOUNTS | OTHERS:
            filtered.add(setting, value)
    filtered.load()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
