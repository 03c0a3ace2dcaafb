"""The trusted side: starts a zygote, hands it programs, reads what they left.

>>> with Sandbox() as sandbox:
...     sandbox.script("print(input()[::-1])", "abc").stdout
'cba\\n'
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rlhf_core.config import ConfigError, RlhfError
from rlhf_plugin_code.request_files import Part, RequestFiles, encode, read
from rlhf_plugin_code.results import CpuUnavailable as CpuUnavailable
from rlhf_plugin_code.results import Ended as Ended
from rlhf_plugin_code.results import Limits as Limits
from rlhf_plugin_code.results import SandboxError as SandboxError
from rlhf_plugin_code.results import TestReport as TestReport
from rlhf_plugin_code.results import check_memory, longest_s, report
from rlhf_plugin_verifiers.workers import KillableProcess, receive

UNSAFE = "none: programs run with this user's rights"


def executable() -> str:
    """The interpreter itself, not the one of a virtual environment, which programs cannot read."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def interpreter() -> list[str]:
    """What a program needs of this interpreter's prefix: its programs, shared libraries and standard library."""
    paths = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})]
    for prefix in dict.fromkeys((sys.base_prefix, sys.base_exec_prefix)):
        paths += [f"{prefix}/bin", *sorted(map(str, Path(prefix, "lib").glob("*.so*")))]
    return [p for p in dict.fromkeys(paths) if os.path.exists(p)]


def installed_packages() -> list[str]:
    """Folders of installed packages: the base interpreter's, those of a virtual environment, and the system's."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    prefixes = (None, base)
    paths = [sysconfig.get_path(kind, vars=prefix) for kind in ("purelib", "platlib") for prefix in prefixes]
    paths += [str(p) for p in Path("/usr/lib").glob("python3*/*-packages")]
    return [*dict.fromkeys(paths)]


def describe(name: str, ready: Mapping[str, Any]) -> str:
    if name == UNSAFE:
        return UNSAFE
    landlock = f"landlock {ready['landlock']}" if ready["landlock"] else "no landlock in this kernel"
    proc = "" if ready["proc"] else ", no /proc (memory is watched per process only; who sleeps too long is an error)"
    mounts = ", programs can list mounts" if ready["mounts"] and ready["proc"] else ""
    return f"{name}, seccomp, {landlock}, resource limits{proc}{mounts}"


BOOT = (
    "import sys; sys.path.insert(0, f'/proc/self/fd/{sys.argv[1]}'); from rlhf_plugin_code.inside.zygote import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
START_S, PROBE_S, GRACE_S = 30.0, 5.0, 5.0
PROBE = """
import os
try:
    os.memfd_create("probe")
except PermissionError:
    pass
else:
    raise SystemExit("the filter of system calls has no effect")
with open("probe", "w"):
    pass
"""
"""Runs before any program: what is denied must be denied, and a program must be able to run at all."""
VERDICTS_KB = 1 << 14
"""All verdicts of one program; also what the tests' side may write, however little the program itself may."""
BUBBLEWRAP = ("--unshare-all", "--die-with-parent", "--new-session", "--dev-bind", "/", "/", "--clearenv")


class Sandbox:
    """Runs untrusted programs; of one thread at a time, started with the first program. ``packages`` lets programs
    import what is installed (also a package with reference solutions), ``readable`` read further folders. Without
    isolation here it raises ConfigError, unless ``unsafe_local_execution`` allows resource limits alone."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        packages: bool = False,
        readable: Sequence[str] = (),
        unsafe_local_execution: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self.packages, self.readable = packages, tuple(readable)
        self.unsafe = unsafe_local_execution
        self.isolation = ""
        self.starts = self._requests = 0
        self._process: KillableProcess | None = None

    def start(self) -> None:
        """Start the zygote with the strongest isolation that the machine has; does nothing when it runs."""
        if self._process is not None:
            return
        refusals: list[str] = []
        for name, prefix, isolated in self._choices():
            ready = self._try(prefix, isolated)
            refused = ready["refused"] if "refused" in ready else self._probe(isolated)
            if not refused:
                self.isolation = describe(name, ready)
                return
            refusals.append(f"{name}: {refused}")
        raise ConfigError(
            "programs written by a model cannot be run here: this machine offers no isolation",
            why="; ".join(refusals) or f"it needs Linux, this is {sys.platform}",
            fix="allow unprivileged user namespaces (sysctl user.max_user_namespaces, in docker --security-opt "
            "seccomp=unconfined), or accept the risk in a machine that may be lost: unsafe_local_execution: true",
        )

    @property
    def pid(self) -> int:
        """Process that all programs are below; 0 when there is none."""
        return self._process.pid if self._process else 0

    def _choices(self) -> Iterable[tuple[str, list[str], bool]]:
        """Name, command prefix and whether isolated, strongest first."""
        if sys.platform == "linux":
            bwrap = shutil.which("bwrap")
            if bwrap and os.geteuid() != 0:  # root's own namespaces are stronger: programs become another user
                yield "bubblewrap and namespaces", [bwrap, *BUBBLEWRAP, "--"], True
            yield "namespaces", [], True
            if self.unsafe:
                yield UNSAFE, [], False

    def _try(self, prefix: Sequence[str], isolated: bool) -> dict[str, Any]:
        package = os.open(Path(__file__).parents[1], os.O_RDONLY | os.O_DIRECTORY)
        python = [*prefix, executable(), "-s", "-P", "-B", "-c", BOOT, str(package)]
        parent = 1 if prefix else os.getpid()
        try:
            self._process = KillableProcess(
                "the sandbox",
                lambda descriptor: [*python, str(descriptor), str(parent)],
                {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                socket.SOCK_SEQPACKET,
                (package,),
            )
        finally:
            os.close(package)
        self.starts += 1
        try:
            return self._process.ready(self._settings(isolated), START_S)[0]["ready"]
        except RlhfError as error:
            self.close()
            return {"refused": error.why or error.what}

    def _probe(self, isolated: bool) -> str:
        """Run a program that looks at its confinement; return what is wrong with it, "" if nothing."""
        try:
            ended = self.script(PROBE if isolated else "", timeout_s=PROBE_S)
        except CpuUnavailable:
            self.close()
            raise
        except SandboxError as error:
            self.close()
            return error.what
        if ended.good:
            return ""
        self.close()
        words = ended.stderr.strip().splitlines()
        return words[-1] if words else f"a program that does nothing ended with {ended.why} {ended.code}"

    def _settings(self, isolated: bool) -> dict[str, Any]:
        standard = [sysconfig.get_path("stdlib"), str(Path(sysconfig.get_path("stdlib"), "lib-dynload"))]
        folders = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))] if self.packages else []
        hidden = [] if self.packages else installed_packages()
        return {
            "isolated": isolated,
            "executable": executable(),
            "readable": [*dict.fromkeys([*interpreter(), *folders, *self.readable])],
            "hidden": [*dict.fromkeys(os.path.realpath(h) for h in hidden)],
            "import_paths": standard + folders,
            "path": f"{sys.base_exec_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        }

    def script(self, code: str, stdin: str = "", *, args: Sequence[str] = (), timeout_s: float | None = None) -> Ended:
        """Run Python code as a main program, in an interpreter that is already up."""
        return self._alone("script", {"code": code, "args": list(args)}, stdin, timeout_s)

    def command(
        self,
        command: Sequence[str],
        stdin: str = "",
        *,
        files: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Ended:
        """Run any program that is installed, such as ``["python3", "main.py"]``, in a folder with ``files``."""
        return self._alone("command", {"command": list(command), "files": dict(files or {})}, stdin, timeout_s)

    def _alone(self, role: str, job: Mapping[str, Any], stdin: str, timeout_s: float | None) -> Ended:
        files = RequestFiles()
        try:
            out, err = files.new(), files.new()
            part = Part(role, (files.new(encode(stdin)), out, err, files.new(json.dumps(job).encode())))
            reply = self._ask([part], files, timeout_s or self.limits.timeout_s, START_S)
            ended = self._ended(reply, 0, out, err)
        finally:
            files.close()
        check_memory(reply, ended.good)
        if not reply["begun"]:
            words = ended.stderr.strip().splitlines()
            raise SandboxError(
                f"no program can be run in the sandbox: {words[-1] if words else f'exit code {ended.code}'}",
                why="its process could not be confined, or the command is not there",
                fix="rlhf doctor",
            )
        return ended

    def tests(
        self,
        code: str,
        tests: Sequence[str],
        *,
        setup: str = "",
        names: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> TestReport:
        """Judge a program by tests (``assert f(1) == 2``) that it never sees, run in another process after ``setup``;
        ``names`` are what it defines, by default the one name that the tests read and nothing else supplies;
        ``timeout_s`` is for all tests, and once more for ``setup``."""
        seconds = timeout_s or self.limits.timeout_s
        files = RequestFiles()
        try:
            theirs, its = files.pair()
            out, err, verdicts, complaints = files.new(), files.new(), files.new(), files.new()
            job = {"setup": setup, "tests": list(tests), "names": list(names)}
            judge = Part(
                "harness", (files.null(), complaints, complaints, files.new(json.dumps(job).encode()), theirs, verdicts)
            )
            program = Part("guest", (files.null(), out, err, files.new(json.dumps({"code": code}).encode()), its))
            reply = self._ask([judge, program], files, seconds, seconds)
            ended = self._ended(reply, 1, out, err)
            lines = read(verdicts, VERDICTS_KB << 10).split(b"\n")[:-1]  # one may have been cut off by the end
            messages = [json.loads(line) for line in lines]
            verdicts_read = report(messages, len(tests), reply, ended, read(complaints, 500).decode(errors="replace"))
            check_memory(reply, all(verdicts_read.passed))
            return verdicts_read
        finally:
            files.close()

    def _ended(self, reply: Mapping[str, Any], number: int, out: int, err: int) -> Ended:
        part, max_bytes = reply["parts"][number], self.limits.output_kb << 10
        texts = [read(d, max_bytes).decode(errors="replace") for d in (out, err)]
        return Ended(reply["why"], part["code"], texts[0], texts[1], reply["seconds"], part["peak_mb"], reply["own_s"])

    def _ask(self, parts: Sequence[Part], files: RequestFiles, own_s: float, setup_s: float) -> dict[str, Any]:
        """Run the parts of a request; the program comes last, with ``own_s`` of own time and ``setup_s`` before."""
        self.start()
        cap_s = longest_s(own_s)
        descriptors = sorted({d for part in parts for d in part.descriptors})
        limits = self.limits
        self._requests += 1
        roles = [{"role": p.role, "fds": [descriptors.index(d) for d in p.descriptors]} for p in parts]
        request = {
            "id": f"{os.getpid()}/{self._requests}",
            "parts": roles,
            "limits": {
                "own_s": own_s,
                "setup_s": setup_s,
                "cap_s": cap_s,
                "cpu_s": int(own_s + setup_s) + 2,
                "memory_mb": limits.memory_mb,
                "total_mb": limits.memory_mb,
                "disk_mb": limits.disk_mb,
                "processes": limits.processes,
                "file_kb": limits.output_kb,
                "files": 64,
                "verdicts_kb": max(limits.output_kb, VERDICTS_KB),
            },
        }
        timeout_s = 2 * cap_s + GRACE_S
        try:
            control = self._send(json.dumps(request).encode(), descriptors, timeout_s)
            files.hand_over()
            deadline = time.monotonic() + timeout_s
            reply, _ = receive(control, deadline)
            while reply["id"] != request["id"]:  # for a process that was killed while it waited
                reply, _ = receive(control, deadline)
        except (OSError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            if self._process is not None and self._process.exit_code(0.2) is not None:
                why = "its process ended"
            lines = [] if self._process is None else self._process.output()
            self.close()
            raise SandboxError(
                "the sandbox gave no answer", why=lines[-1] if lines else why, fix="the next program gets a new one"
            ) from error
        if reply["why"] == "starved":
            raise CpuUnavailable(
                f"the program was given less than its {own_s:g} s of CPU time in {cap_s:g} s",
                why="the machine is too busy",
                fix="fewer reward.workers, or fewer other processes",
            )
        return reply

    def _send(self, request: bytes, descriptors: Sequence[int], timeout_s: float) -> socket.socket:
        """Hand a request to the zygote; one that died meanwhile is replaced and the request sent again."""
        for last in (False, True):
            self.start()
            assert self._process is not None
            self._process.control.settimeout(timeout_s)
            try:
                socket.send_fds(self._process.control, [request], descriptors)
                break
            except ConnectionError:
                if last:
                    raise
                self.close()
        return self._process.control

    def close(self) -> None:
        """End the zygote and with it all that runs; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def __enter__(self) -> Sandbox:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
