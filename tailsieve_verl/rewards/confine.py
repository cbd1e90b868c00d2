"""Confinement of the process that calls it, for good: what it may open, whom it may reach, what it may use.

    files       Landlock: reading the interpreter and system libraries, writing one folder; nothing else can be opened
    network     seccomp: no socket of any kind can be made (socketpair, which asyncio uses for itself, can)
    processes   seccomp: no fork, no exec; signals reach this process alone; no ptrace, no namespaces, no mounts
    resources   limits on CPU seconds, address space, file size, open files, core dumps; root's capabilities are dropped

All of it is open to an ordinary user and inherited by whatever the process turns into. Linux on x86-64 and aarch64;
:func:`confine` says what the kernel does not have.

This file is loaded by its path, into an interpreter that may not find this package: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

#: Number of capset, and the version of its header.
CAPSET, CAPABILITY_VERSION = {"x86_64": 126, "aarch64": 91}, 0x20080522
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2

# ---- Landlock (the numbers are the same on every architecture) -----------------------------------------------------

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
EXECUTE, WRITE, READ, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
#: Rights over files by the version of the interface that brought them: 13 at first, then rename, truncate, ioctl.
ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
#: Rights that a file, as opposed to a folder, can have.
FILE_RIGHTS = EXECUTE | WRITE | READ | TRUNCATE | 1 << 15
#: What an interpreter needs besides its own folders.
SYSTEM = (
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/dev/urandom", "/dev/random", "/dev/zero"),
)


def landlock_version() -> int:
    """Version of the kernel's Landlock; 0 if it has none."""
    return max(0, _libc.syscall(LANDLOCK_CREATE, None, 0, 1))


def restrict_files(readable: list[str], writable: list[str]) -> None:
    """Let this process open nothing but these; reading includes folders' contents, writing everything below.

    Raises:
        OSError: the kernel refuses.
    """
    version = landlock_version()
    rights = ALL_RIGHTS[max(v for v in ALL_RIGHTS if v <= version)]
    # TCP from version 4 on, abstract sockets and signals from version 6 on: a second wall behind seccomp.
    attributes = struct.pack("=QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _call(LANDLOCK_CREATE, ctypes.c_char_p(attributes), size, 0)
    read = EXECUTE | READ | READ_DIR
    for paths, wanted in ((readable, read), (writable, rights & ~EXECUTE)):
        for path in paths:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not there, so nobody can open it
            allowed = wanted if os.path.isdir(path) else wanted & FILE_RIGHTS & rights
            rule = struct.pack("=Qi", allowed & rights, descriptor)
            _call(LANDLOCK_ADD, ruleset, 1, ctypes.c_char_p(rule), 0)
            os.close(descriptor)
    _call(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


# ---- seccomp -------------------------------------------------------------------------------------------------------

#: Refused calls: name -> (number on x86-64, on aarch64); None where an architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # network
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # processes
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # memory that outlives or escapes the limits
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mlock": (149, 228),
    "mlock2": (325, 284),
    "mlockall": (151, 230),
    # owners, modes, times and attributes of files, which Landlock leaves alone
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    # the system
    "setrlimit": (160, 164),
    "iopl": (172, None),
    "ioperm": (173, None),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
}
#: Calls allowed on this process alone: their first argument must be its id.
OWN_ONLY = {"kill": (62, 129), "tgkill": (234, 131)}
#: Reads limits, and sets them if its third argument is given.
PRLIMIT = (302, 261)
CLONE, CLONE3 = (56, 220), 435
CLONE_THREAD = 0x00010000
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
X32_BIT = 0x40000000
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data; of arguments the low half, the high one follows.
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 32


def filter_program() -> bytes:
    """The classic BPF program of this process: struct sock_filter, one after the other.

    Raises:
        OSError: an architecture whose call numbers are not known here.
    """
    if platform.machine() not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter for {platform.machine()}")
    column, audit = ARCHITECTURES[platform.machine()]
    own = os.getpid()

    def step(code: int, k: int, true: int = 0, false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, true, false, k)

    program = [step(LOAD, ARCHITECTURE), step(EQUAL, audit, 1, 0), step(RETURN, KILL), step(LOAD, NUMBER)]
    if column == 0:  # the x32 numbers would slip past the comparisons
        program += [step(AT_LEAST, X32_BIT, 0, 1), step(RETURN, KILL)]
    for numbers in REFUSED.values():
        if numbers[column] is not None:
            program += [step(EQUAL, numbers[column] or 0, 0, 1), step(RETURN, REFUSE)]
    # glibc falls back to clone, whose flags can be looked at.
    program += [step(EQUAL, CLONE3, 0, 1), step(RETURN, UNKNOWN)]
    program += [
        *(step(EQUAL, CLONE[column], 0, 4), step(LOAD, FIRST_ARGUMENT)),
        *(step(ANY_BIT, CLONE_THREAD, 0, 1), step(RETURN, ALLOW), step(RETURN, REFUSE)),
    ]
    for numbers in OWN_ONLY.values():
        program += [step(EQUAL, numbers[column], 0, 4), step(LOAD, FIRST_ARGUMENT)]
        program += [step(EQUAL, own, 0, 1), step(RETURN, ALLOW), step(RETURN, REFUSE)]
    program += [step(EQUAL, PRLIMIT[column], 0, 6)]
    for half in (0, 4):
        program += [step(LOAD, THIRD_ARGUMENT + half), step(EQUAL, 0, 1, 0), step(RETURN, REFUSE)]
    return b"".join([*program, step(RETURN, ALLOW)])


def restrict_calls() -> None:
    """Install the filter.

    Raises:
        OSError: the kernel refuses, or the architecture is not known.
    """
    program = filter_program()
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    whole = Program(len(program) // 8, ctypes.addressof(buffer))
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(whole))


# ---- limits, and everything together -------------------------------------------------------------------------------


def restrict_resources(limits: dict[str, int]) -> None:
    """Set hard limits where they are not lower already: CPU seconds, bytes of memory and of a file, open files."""
    for what, limit in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (least, least))


def drop_capabilities() -> None:
    """Give up what root may do beyond an ordinary user; nothing for an ordinary user."""
    number = CAPSET.get(platform.machine())
    if number is not None:
        header = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION, 0))
        _call(number, header, ctypes.create_string_buffer(24))


def confine(folder: str, limits: dict[str, int]) -> list[str]:
    """Confine this process; ``folder`` is what it may write to.

    Returns:
        What the kernel did not grant, in words; empty if everything is in force.
    """
    _prctl(PR_SET_PDEATHSIG, 9)  # no survivor if the caller is killed
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    restrict_resources(limits)
    drop_capabilities()
    missing = []
    interpreter = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix} - {"/"}
    try:
        if landlock_version() < 1:
            raise OSError(errno.ENOSYS, "no Landlock")
        restrict_files([*interpreter, *SYSTEM], [folder, "/dev/null"])
    except OSError as error:
        missing.append(f"files outside its folder can be opened ({error.strerror})")
    try:
        restrict_calls()
    except OSError as error:
        missing.append(f"sockets and processes can be made ({error.strerror})")
    return missing


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _prctl(option: int, argument: int, pointer: int = 0) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(pointer), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
