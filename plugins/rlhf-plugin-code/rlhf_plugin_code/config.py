"""Configurations; nothing here imports more than pydantic."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import Config, component
from rlhf_core.rewards import VerifierConfig

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.data import Prompt
    from rlhf_plugin_code.rows import Asserted
    from rlhf_plugin_code.sandbox import Sandbox

VerifierField = component("verifier")


class SandboxSettings(Config):
    """What a program may use, and how it is isolated."""

    not_inputs: ClassVar[Set[str]] = frozenset({"readable"})

    timeout_s: float = Field(default=5.0, gt=0)
    """Seconds for a program and all its tests, in which it runs or sleeps. Those that it waits for a CPU do not count;
    a program that had to wait for most of twenty times as long has status ``error``."""
    memory_mb: int = Field(default=512, ge=64)
    """Address space of a process, and resident memory of all of a program's processes together."""
    disk_mb: int = Field(default=16, ge=1)
    """Size of the private /tmp, which is in memory."""
    processes: int = Field(default=16, ge=1)
    """Processes and threads of a program at a time."""
    output_kb: int = Field(default=1024, ge=1)
    """A program that writes more to standard output, standard error or a file is ended."""
    packages: bool = False
    """Programs may import what is installed, not only the standard library. They could then also read a package that
    holds reference solutions."""
    readable: tuple[str, ...] = ()
    """Further folders that programs may read."""
    unsafe_local_execution: bool = False
    """Where the machine offers no isolation: run programs with this user's rights and nothing but resource limits."""

    @property
    def busy_seconds(self) -> float:
        """The longest that a program takes on a busy machine: to begin, and then to end."""
        from rlhf_plugin_code.results import longest_s

        return 2 * longest_s(self.timeout_s) + 2.0

    def build(self) -> Sandbox:
        from rlhf_plugin_code.sandbox import Limits, Sandbox

        limits = Limits(self.timeout_s, self.memory_mb, self.disk_mb, self.processes, self.output_kb)
        return Sandbox(
            limits, packages=self.packages, readable=self.readable, unsafe_local_execution=self.unsafe_local_execution
        )


class CodeConfig(VerifierConfig):
    """What all verifiers of code have in common."""

    needs_answer: ClassVar[bool] = False
    credit: Literal["mean", "all"] = "all"
    """``mean``: the share of tests passed; ``all``: 1.0 if all are, else 0.0."""
    extract: Literal["last_block", "first_block", "strict", "none"] = "last_block"
    """Where the program is: in the last or the first Markdown code block (the whole text if there is none), in exactly
    one block (``strict``, otherwise wrong), or the whole text."""
    sandbox: SandboxSettings = SandboxSettings()
    """What a program may use."""

    @classmethod
    def diagnose(cls) -> str:
        from rlhf_plugin_code.preflight import isolation

        return f"sandbox: {isolation(SandboxSettings())}"

    def conditions(self) -> dict[str, str]:
        from rlhf_plugin_code.preflight import isolation

        return {"isolation": isolation(self.sandbox)}

    def preflight(self, ctx: BuildContext) -> None:
        """Start a sandbox and print how it isolates programs."""
        from rlhf_plugin_code.preflight import announce

        announce(self.sandbox)

    def row(self, prompt: Prompt) -> object:
        """What the verdict compares with, read from a row; :class:`BrokenTests` if there is nothing to judge by."""
        return None

    def check_prompt(self, prompt: Prompt) -> str | None:
        """Why no program could be judged by this row; None if it can."""
        from rlhf_plugin_code.rows import BrokenTests

        try:
            self.row(prompt)
        except BrokenTests as error:
            return str(error)
        return None

    @property
    def seconds(self) -> float:
        """The longest that a verdict takes where there is a CPU for it; the pool's deadline must be later."""
        return self.sandbox.timeout_s + 2.0

    @property
    def busy_seconds(self) -> float:
        return self.sandbox.busy_seconds


class AssertsConfig(CodeConfig):
    """Judges a function by tests such as ``assert f(2) == 4``, which it cannot see.

    Tests are in ``tests`` of the row: a list of program texts, or one text whose asserts count one by one.
    ``test_setup`` (text) runs before them, on their side. ``entry_point`` names what the program must define, a name or
    a list; without it the tests may read one name that they neither define nor import.
    """

    name: str = "asserts"
    component: ClassVar[str] = "rlhf_plugin_code.verifiers:Asserts"
    tests_column: str = "tests"
    """Column of the tests."""
    setup_column: str = "test_setup"
    """Column of what runs before them; a list of lines or one text. May be missing."""

    def row(self, prompt: Prompt) -> Asserted:
        from rlhf_plugin_code.rows import asserts

        return asserts(self, prompt)


class MBPPConfig(AssertsConfig):
    """Judges solutions of MBPP by ``test_list``, after ``test_imports`` (sanitized) or ``test_setup_code`` (full).

    Without ``entry_point`` the program must define what the reference solution in ``code`` does.
    """

    name: str = "mbpp"
    tests_column: str = "test_list"
    setup_column: str = "test_imports"

    def row(self, prompt: Prompt) -> Asserted:
        from rlhf_plugin_code.rows import mbpp

        return mbpp(self, prompt)


class HumanEvalConfig(AssertsConfig):
    """Judges solutions of HumanEval by ``test`` and ``entry_point``; a bare function body is put under the prompt."""

    name: str = "humaneval"
    component: ClassVar[str] = "rlhf_plugin_code.verifiers:HumanEval"
    tests_column: str = "test"

    def row(self, prompt: Prompt) -> Asserted:
        from rlhf_plugin_code.rows import humaneval

        return humaneval(self, prompt)


class AppsConfig(CodeConfig):
    """Judges programs by what they print for given inputs: ``input_output`` = ``{"inputs": [...], "outputs": [...]}``.

    With ``fn_name`` in it, inputs are arguments and outputs what the function returns, as in APPS and LiveCodeBench.
    """

    name: str = "apps"
    component: ClassVar[str] = "rlhf_plugin_code.verifiers:StdinStdout"
    column: str = "input_output"
    """Column with the inputs and outputs; JSON text or an object."""
    max_tests: int = Field(default=20, ge=1)
    """Only so many tests are run, the first ones."""
    tolerance: float = Field(default=1e-6, ge=0)
    """Numbers this close, relatively or absolutely, are equal."""

    def row(self, prompt: Prompt) -> object:
        from rlhf_plugin_code.rows import cases

        return cases(self, prompt)


class ProgramConfig(CodeConfig):
    """Runs a program and judges what it prints, by another verifier or by equality with the answer."""

    name: str = "program"
    component: ClassVar[str] = "rlhf_plugin_code.verifiers:Program"
    verifier: VerifierField | None = None  # pyright: ignore[reportInvalidTypeForm]
    """Verifier that is shown the output in place of the completion; without one, output and answer must be equal
    but for white space."""
    stdin_column: str = "stdin"
    """Column of the program's input; may be missing."""
    command: tuple[str, ...] = ()
    """How to run it where it is not Python, e.g. ``[bash, main]``; the program is in the file ``main``."""

    @property
    def needs_answer(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the other verifier; equality needs one."""
        return self.verifier is None or bool(getattr(self.verifier, "needs_answer", False))

    def preflight(self, ctx: BuildContext) -> None:
        """Start a sandbox, print how it isolates programs, and try the command."""
        super().preflight(ctx)
        if self.command:
            from rlhf_plugin_code.preflight import check_command

            check_command(self.sandbox, self.command)

    def check_prompt(self, prompt: Prompt) -> str | None:
        check = getattr(self.verifier, "check_prompt", None)
        return None if check is None else check(prompt)

    @property
    def seconds(self) -> float:
        return super().seconds + float(getattr(self.verifier, "seconds", 0.0))

    @property
    def busy_seconds(self) -> float:
        return super().busy_seconds + float(getattr(self.verifier, "busy_seconds", 0.0))

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(getattr(self.verifier, "secrets", ()))
