"""Starts the processes of tests as forks of one process that has imported torch and transformers already, and workers
of verifiers as forks of one that has imported neither.

The tests start hundreds of trainings and ranks, each of which imports for five to eight processor seconds.
:func:`install` replaces how ``subprocess.Popen`` starts workers and this repository's commands (``MODULES``); other
processes, and those with another variable that a library reads when it is imported, start as usual. Linux only.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import gc
import importlib.util
import inspect
import json
import multiprocessing.util
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LAUNCHERS = (
    "rlhf_core.cli.main",
    "rlhf_core.cli.rank_main",
    "rlhf_core.runs.launch.ranks",
    "torch.distributed.run",
    "accelerate.commands.launch",
)
"""Those that start processes themselves."""
MODULES = (*LAUNCHERS, "rlhf_testing.strategy_rank", "scripts.bench._sharding_rank", "scripts.check.step_path")
"""Modules, besides those of tests, that are started as forks after ``python -m``."""
IMPORTED = (
    "torch",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "numpy",
    "pydantic",
    "pluggy",
    "click",
    "packaging.requirements",
    "rich.live",
    "rich.progress",
    "rich.syntax",
    "httpx",
    "safetensors.torch",
    "tokenizers",
    "datasets",
    "accelerate",
    "peft",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "rlhf_core.cli.train",
    "rlhf_core.cli.progress",
    "rlhf_core.distributed.accelerated",
    "rlhf_core.runs.launch.run",
    "rlhf_core.rl.build",
    "rlhf_core.rl.single_turn",
    "rlhf_core.rl.trainer",
    "rlhf_core.models.chat_templates",
    "rlhf_core.models.load",
    "rlhf_plugin_composite.rules",
    "rlhf_plugin_fsdp.strategy",
    "rlhf_plugin_grpo.advantage",
    "rlhf_plugin_grpo.config",
    "rlhf_plugin_grpo.loss",
    "rlhf_plugin_hub.card",
    "rlhf_plugin_native.engine",
    "rlhf_plugin_pocket.gold",
    "rlhf_plugin_pocket.source",
    "rlhf_plugin_preflight.memory.check",
    "rlhf_plugin_report.hook",
    "rlhf_plugin_tts.keep",
    "rlhf_plugin_verifiers.reward",
)
SPAWNED = "from multiprocessing.spawn import spawn_main"
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rlhf_"
"""How the code of a process of multiprocessing begins, and that of a verifier's or an environment's."""
OF_WORKERS = (
    "rlhf_plugin_verifiers.workers.worker",
    "rlhf_plugin_episodes.server",
    "rlhf_plugin_verifiers.reward_config",
    "rlhf_plugin_verifiers.maths.verifier",
)
"""What the server of workers imports: no torch, which a worker's bound on its memory would count."""
READ_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "CUDA_", "LD_")
READ_AT_IMPORT += ("TORCH_", "PYTHON", "ACCELERATE_", "HOME", "XDG_", "LC_", "LANG")
if importlib.util.find_spec("deepspeed"):
    READ_AT_IMPORT += ("DS_",)
READ_WHEN_STARTED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHON_EXEC", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
# sklearn and lm_eval set these in the process of the tests that imports them.
READ_WHEN_STARTED += ("KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK", "HF_XET_HIGH_PERFORMANCE")
ROOT = Path(__file__).resolve().parents[1]
SUPERVISE = str(ROOT / "plugins" / "rlhf-plugin-vllm" / "rlhf_plugin_vllm" / "supervise.py")
"""Starts a server of vLLM, which in tests is a stand-in."""
API_SERVER = "vllm.entrypoints.openai.api_server"
PR_SET_CHILD_SUBREAPER = 36
FILES = 64
"""Most that a process is given."""
ROOM = "-" * 20_000
"""Of the server's arguments, and of its variables, for those of its forks."""
REAL = subprocess.Popen._execute_child  # type: ignore[attr-defined]
PARAMETERS = list(inspect.signature(REAL).parameters)


class Client:
    """Asks a fork server, which it starts at the first request, to start processes: workers, or all others."""

    def __init__(
        self, environment: Mapping[str, str], channel: socket.socket | None = None, *, workers: bool = False
    ) -> None:
        self.environment, self.workers = dict(environment), workers
        self.owner = os.getpid()
        self.channel = channel
        self.lock = threading.Lock()

    def takes(self, given: Mapping[str, Any]) -> bool:
        """Whether a fork of the server is what Popen was asked to start."""
        args, env = given["args"], given["env"]
        plain = not (given["shell"] or given["executable"])
        plain = plain and given["preexec_fn"] in (None, heed_ctrl_c)
        if os.getpid() != self.owner or not plain or isinstance(args, (str, bytes, os.PathLike)):
            return False
        found = target([str(a) for a in args])
        if given.get("process_group", -1) not in (-1, 0, None) or found is None:
            return False
        if (found[0] == BOOT) != self.workers or (given["pass_fds"] and found[0] not in (BOOT, SPAWNED)):
            return False
        env = dict(os.environ if env is None else env)
        names = {name for name in {*env, *self.environment} if name.startswith(READ_AT_IMPORT)}
        return all(env.get(k) == self.environment.get(k) for k in names.difference(READ_WHEN_STARTED))

    def start(self, given: Mapping[str, Any]) -> int:
        """Start the process; its pid. It is a child of this one, as any other."""
        request = {
            "args": [os.fspath(a) for a in given["args"]],
            "env": dict(os.environ if given["env"] is None else given["env"]),
            "cwd": os.path.realpath(given["cwd"] or os.getcwd()),
            "session": bool(given["start_new_session"]),
            "group": given.get("process_group") == 0,
            "passed": list(given["pass_fds"]),
            "heeds": bool(given["preexec_fn"]) or signal.getsignal(signal.SIGINT) != signal.SIG_IGN,
        }
        files = [n if fd == -1 else fd for n, fd in enumerate((given["p2cread"], given["c2pwrite"], given["errwrite"]))]
        files += given["pass_fds"]
        files += [] if given["close_fds"] else inheritable()
        data = json.dumps(request).encode()
        with self.lock:
            channel = self.channel = self.channel or self._server()
            adopt(True)
            try:
                channel.sendall(struct.pack("!I", len(data)))
                channel.sendmsg([data[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
                channel.sendall(data[1:])
                return struct.unpack("!i", read(channel, 4))[0]
            finally:
                adopt(False)

    def _server(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            kind = "workers" if self.workers else "others"
            command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), kind, ROOM]
            env = {**self.environment, "RLHF_FORK_ROOM": ROOM}
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=env, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
            )
        return ours


def heed_ctrl_c() -> None:
    """For ``preexec_fn``: what a shell starts in the background ignores SIGINT, and so does what that starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def inheritable() -> list[int]:
    """Open files, besides the first three, that a process inherits: locks."""
    opened = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in opened if fd > 2 and Path(f"/proc/self/fd/{fd}").exists() and os.get_inheritable(fd)]


def adopt(orphans: bool) -> None:
    """Let this process become the parent of its descendants' orphans, or no longer."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def install(*clients: Client) -> None:
    """Let ``subprocess.Popen`` of this process start forks."""

    def execute_child(self: Any, *words: Any) -> None:
        given = dict(zip(PARAMETERS[1:], words, strict=True))
        client = next((one for one in clients if one.takes(given)), None)
        if client is None:
            REAL(self, *words)
            return
        try:
            self.pid = client.start(given)
            self._child_created = True
        finally:
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[name] for name in names))

    def spawn(path: str, args: Sequence[str], passfds: Sequence[int]) -> int:
        given: dict[str, Any] = dict.fromkeys(PARAMETERS[1:]) | {"args": [os.fsdecode(word) for word in args]}
        given |= {"pass_fds": sorted(map(int, passfds)), "close_fds": True}
        given |= dict.fromkeys(("p2cread", "c2pwrite", "errwrite"), -1)
        client = next((one for one in clients if one.takes(given)), None)
        return real_spawn(path, args, passfds) if client is None else client.start(given)

    real_spawn = multiprocessing.util.spawnv_passfds
    multiprocessing.util.spawnv_passfds = spawn
    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


def target(args: Sequence[str]) -> tuple[str, list[str]] | None:
    """What a command runs and its ``sys.argv``; None where it is not this repository's own."""
    if args[0] == str(Path(sys.executable).parent / "rlhf"):
        return "rlhf_core.cli.main", list(args)
    rest = list(args[1:])
    if rest[:2] == ["-m", API_SERVER]:
        stand_in = Path(args[0]).parent / "site" / Path(*API_SERVER.split(".")).with_suffix(".py")
        return (str(stand_in), [str(stand_in), *rest[2:]]) if stand_in.is_file() else None
    if args[0] != sys.executable:
        return None
    while rest[:1] in (["-u"], ["-B"]):
        del rest[0]
    if rest[:1] == ["-c"]:
        code = next((code for code in (BOOT, SPAWNED) if rest[1].startswith(code)), None)
        return (code, ["-c", *rest[2:]]) if code else None
    if len(rest) > 1 and rest[0] == "-m":
        own = rest[1] in MODULES or rest[1].startswith("tests.")
        return (rest[1], rest[1:]) if own else None
    if rest and rest[0].endswith(".py"):
        own = rest[0] == SUPERVISE or Path(rest[0]).resolve().is_relative_to(ROOT / "tests")
        return (rest[0], rest) if own else None
    return None


def read(channel: socket.socket, size: int) -> bytes:
    """``size`` bytes; nothing where the other end is closed."""
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each request until the channel is closed; returns the request in the fork, None in the server."""
    while header := read(channel, 4):
        (size,) = struct.unpack("!I", header)
        first, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(FILES * array.array("i").itemsize))
        request = json.loads(first + read(channel, size - 1))
        files = array.array("i", ancillary[0][2])
        between = os.fork()
        if between == 0:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            if request["group"]:
                os.setpgid(0, 0)
            while os.getppid() == middle:  # until the process that asked is the parent
                os.sched_yield()
            channel.sendall(struct.pack("!i", os.getpid()))
            channel.close()
            become(request, files)
            return request
        for fd in files:
            os.close(fd)
        os.waitpid(between, 0)
    return None


def become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Take over files, folder and environment of a new process."""
    if request["session"]:
        os.setsid()
    for n, fd in enumerate(files[:3]):
        os.dup2(fd, n)
        os.close(fd)
    passed = files[3:][: len(request["passed"])]
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 500) for fd in passed]
    for fd in passed:
        os.close(fd)
    for fd, n in zip(moved, request["passed"]):
        os.dup2(fd, n)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["heeds"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    show(request)
    if "-u" in request["args"][1:2] or os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]


def show(request: Mapping[str, Any]) -> None:
    """Let /proc tell this process's arguments and variables, as far as there is room, and not the server's."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    places = [int(field) for field in fields[45:49]]
    texts = request["args"], [f"{name}={value}" for name, value in request["env"].items()]
    for start, end, words in zip(places[::2], places[1::2], texts):
        data = "\0".join(words).encode()[: end - start - 1]
        ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


def server_of_a_launcher(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Fork a server for the processes that this one starts; returns a request in their forks, None in this one."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        show({"args": [], "env": {}})  # who looks for the launcher's processes does not find this one
        nothing = os.open(os.devnull, os.O_RDWR)
        for n in range(3):
            os.dup2(nothing, n)
        os.close(nothing)
        request = serve(theirs)
        if request is None:
            os._exit(0)
        return request
    theirs.close()
    install(Client(environment, ours))
    return None


def run(request: dict[str, Any], libraries: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the command as ``python`` would."""
    while True:
        found = target(request["args"])
        assert found is not None
        name, sys.argv = found
        if name not in (*LAUNCHERS, SUPERVISE):
            break
        another = server_of_a_launcher(environment)
        if another is None:
            break
        request = another
    folders = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    starts = str(Path(name).resolve().parent) if name.endswith(".py") else request["cwd"]
    sys.path[:] = [starts, *folders, *libraries]
    for module in ("tests.fork_server", "tests"):
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    if name in (BOOT, SPAWNED):
        code = request["args"][request["args"].index("-c") + 1]
        exec(code, {"__name__": "__main__"})
    elif name.endswith(".py"):
        runpy.run_path(name, run_name="__main__")
    else:
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def warm() -> None:
    """Do once what takes every process long."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    os.fsync = lambda fd: None  # as in the process of the tests
    get_checkpoint_conversion_mapping("llama")  # compiles a thousand patterns
    # torchrun looks through all modules for the name of the method that an entry of its log, which nobody reads, has
    dynamic_rendezvous.get_method_name = lambda depth=2: ""


def main() -> None:
    """Import the libraries and serve."""
    environment = dict(os.environ)
    environment.pop("RLHF_FORK_ROOM", None)
    before = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    libraries = sys.path[1 + len(before) :]
    channel = socket.socket(fileno=int(sys.argv[1]))
    of_workers = sys.argv[2] == "workers"
    for name in OF_WORKERS if of_workers else IMPORTED:
        importlib.import_module(name)
    if not of_workers:
        warm()
    gc.freeze()
    request = serve(channel)
    if request is None:
        os._exit(0)
    run(request, libraries, environment)


if __name__ == "__main__":
    main()
