"""What the documentation shows is true: its Python runs, and the commands and options it names exist.

A Python block that cannot run here has `<!-- not run: reason -->` on the line before its fence.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDES = [*PAGES, ROOT / "CONTRIBUTING.md"]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (.+) -->\n$")
SHELLS = {"", "sh", "bash", "shell", "console"}
OUTRIDER = re.compile(r"(?:^(?:\w+=\S* +)*|[|;&] *|bin/)outrider(?= |$)([^|;&#]*)")
MAKE = re.compile(r"^make(?= |$)([^|;&#]*)")
NAME = re.compile(r"[a-z][a-z-]*")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@dataclass(frozen=True)
class PythonBlock:
    """One fence: its code, the line of its first statement, and why it is not run, if it is not."""

    code: str
    line: int
    not_run: str | None


def python_blocks(text: str) -> list[PythonBlock]:
    blocks = []
    for fence in FENCE.finditer(text):
        if fence[1] == "python":
            reason = NOT_RUN.search(text, 0, fence.start())
            blocks.append(PythonBlock(fence[2], text.count("\n", 0, fence.start(2)) + 1, reason and reason[1]))
    return blocks


def run_blocks(text: str, name: str) -> tuple[int, list[str]]:
    """Run a page top to bottom in one namespace; the number of blocks that ran, and why the others did not."""
    blocks = python_blocks(text)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        if block.not_run is None:  # the empty lines before it make a traceback point into the page
            exec(compile("\n" * (block.line - 1) + block.code, name, "exec", dont_inherit=True), namespace)
    reasons = [block.not_run for block in blocks if block.not_run is not None]
    return len(blocks) - len(reasons), reasons


def shell_lines(text: str) -> list[str]:
    """Command lines of a page: those of its shell blocks, continued lines joined, and its code spans."""
    blocks = [re.sub(r"\\\n\s*", "", fence[2]) for fence in FENCE.finditer(text) if fence[1] in SHELLS]
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return [line.strip().removeprefix("$ ") for line in [*"".join(blocks).splitlines(), *spans]]


def unknown_targets(text: str, makefile: str) -> list[str]:
    """Words after `make` that look like a target and are none."""
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    words = [word for line in shell_lines(text) for found in MAKE.findall(line) for word in found.split()]
    return [word for word in words if NAME.fullmatch(word) and word not in targets]


def unknown_options(text: str, options: dict[str, set[str]]) -> list[str]:
    """Commands and options of `outrider` that its help does not know.

    An option after `outrider COMMAND` must be that command's; one that stands alone in a code span, anybody's.
    """
    lines = shell_lines(text)
    wrong = [option for line in lines if line.startswith("--") for option in OPTION.findall(line)]
    wrong = [option for option in wrong if option not in set().union(*options.values())]
    for arguments in [found for line in lines for found in OUTRIDER.findall(line)]:
        first = arguments.split()[0] if arguments.strip() else ""
        command = first if NAME.fullmatch(first) else ""
        known = options.get(command, set())
        wrong += [f"outrider {command}"] if command not in options else []
        wrong += [f"outrider {command} {option}" for option in OPTION.findall(arguments) if option not in known]
    return wrong


def help_of(*command: str) -> str:
    """What `outrider COMMAND --help` prints, wide and without colours."""
    environment = {**os.environ, "COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"}
    code = "from outrider.cli import main; main()"
    arguments = [sys.executable, "-c", code, *command, "--help"]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout


def commands_in(text: str) -> list[str]:
    """The commands that a help lists; they may be named after others, as `train eagle3` is."""
    return re.findall(r"^[^\w\n-]*([a-z][a-z0-9-]*) {2,}", text.partition("─ Commands ─")[2], re.MULTILINE)


def options_of(*command: str) -> set[str]:
    """The options of a command, or of all that are named after it."""
    text = help_of(*command)
    return set(OPTION.findall(text)).union(*(options_of(*command, name) for name in commands_in(text)))


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """Command -> its options; "" is `outrider` itself."""
    overview = help_of()
    commands = commands_in(overview)
    assert commands, overview
    return {"": set(OPTION.findall(overview)), **{name: options_of(name) for name in commands}}


# --- the real pages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    num_run, reasons = run_blocks(text, str(page))
    record_property("blocks that ran", num_run)
    record_property("blocks not run", reasons)
    assert num_run > 0 or not python_blocks(text), f"all {len(reasons)} blocks are skipped: {reasons}"


def test_the_method_page_runs_all_its_python():
    blocks = python_blocks((ROOT / "docs" / "method.md").read_text(encoding="utf-8"))
    assert len(blocks) > 10
    assert [block for block in blocks if block.not_run] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_the_make_targets_of_a_page_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert unknown_targets(page.read_text(encoding="utf-8"), makefile) == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_the_options_of_a_page_exist(page, options):
    assert unknown_options(page.read_text(encoding="utf-8"), options) == []


def test_the_demo_of_the_makefile_uses_options_that_exist(options):
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\t@$(BIN)/", "")
    assert "\noutrider generate --compare " in recipes
    assert unknown_options(f"```\n{recipes}```", options) == []


# --- planted faults -----------------------------------------------------------------------------------------------

PAGE = """Text.

```python
x = 1
```
```sh
echo not Python
```
<!-- not run: needs a network -->
```python
raise RuntimeError
```
```python
assert x == {x}
```
"""


def test_blocks_share_a_namespace_and_skips_are_counted():
    assert run_blocks(PAGE.format(x=1), "page.md") == (2, ["needs a network"])


def test_a_false_block_is_found_on_its_line():
    with pytest.raises(AssertionError) as failure:
        run_blocks(PAGE.format(x=2), "page.md")
    assert (failure.traceback[-1].frame.code.raw.co_filename, failure.traceback[-1].lineno + 1) == ("page.md", 14)


def test_a_skip_without_a_reason_is_no_skip():
    (block,) = python_blocks("<!-- not run: -->\n```python\nx = 1\n```\n")
    assert block.not_run is None


@pytest.mark.parametrize("text", ["`make nothing`", "```sh\nmake test nothing\n```", "```\n$ make nothing\n```"])
def test_a_make_target_that_does_not_exist_is_found(text):
    assert unknown_targets(text, "test: x\n\t@run\n") == ["nothing"]


@pytest.mark.parametrize("text", ["we make nothing", "`make`", "`make test`", "```sh\nmake test ARGS='-k x'\n```"])
def test_make_targets_that_exist_are_not_found(text):
    assert unknown_targets(text, "test: x\n\t@run\n") == []


KNOWN = {"": {"--help", "--version"}, "generate": {"--prompt", "--help"}, "bench": {"--runs"}}


@pytest.mark.parametrize(
    "text",
    [
        "`outrider generate --runs 3`",
        "```sh\noutrider generate \\\n  --wrong\n```",
        "`outrider write`",
        "`outrider --runs`",
        "the option `--wrong`",
    ],
)
def test_an_option_that_does_not_exist_is_found(text):
    assert len(unknown_options(text, KNOWN)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`outrider generate --prompt 'a - b'`",
        "```sh\n.venv/bin/outrider bench --runs 3\n```",
        "`outrider --version`, `--prompt`, `--runs`",
        "`pip install --no-deps x`",
        "the package `outrider` does, outrider is --wrong",
        "```python\noutrider --wrong\n```",
    ],
)
def test_options_that_exist_are_not_found(text):
    assert unknown_options(text, KNOWN) == []
