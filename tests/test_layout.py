"""The shape of the source: which way imports go, sizes, docstrings, and what importing costs.

Each check returns the list of its findings: empty on the real tree, not empty on a small tree with a planted fault.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "outrider"

BASE = {"core", "errors", "memory", "cache", "options", "rounds", "penalties"}
METHOD = BASE | {"sampling", "tree", "text"}
MAY_IMPORT = {
    "errors": set(),
    "memory": {"errors"},
    "options": {"errors"},
    "core": {"errors", "options"},
    "cache": {"core", "errors", "memory"},
    "rounds": {"core", "errors"},
    "penalties": {"core"},
    "sampling": BASE,
    "tree": BASE,
    "text": BASE,
    "rules": METHOD,
    "guard": METHOD,
    "blocks": METHOD,
    "engine": METHOD | {"blocks", "guard", "rules"},
    "models": METHOD,
    "storage": set(),
    "drafters": METHOD | {"models", "storage"},
}
"""Parts of the package that are bound to import nothing else of it; all other parts may import anything."""

CORE_FILES = ["core.py", "errors.py", "cache.py", "sampling.py", "tree.py", "engine.py", "text.py"]
"""The method, that the design promises to keep readable in one sitting."""


# --- the checks ---------------------------------------------------------------------------------------------------


def sources(root: Path) -> dict[str, ast.Module]:
    """Dotted module name -> syntax tree, for every file of the package at `root`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def imported(tree: ast.Module, modules: dict[str, ast.Module]) -> Iterator[str]:
    """The modules of the package that a file imports, also inside functions and for type checking only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules else node.module


def part(module: str) -> str:
    """outrider.rules.chain -> rules; the package itself -> outrider."""
    return module.split(".")[1] if "." in module else module


def upward_imports(root: Path) -> list[str]:
    modules = sources(root)
    return [
        f"{module} imports {target}"
        for module, tree in modules.items()
        for target in imported(tree, modules)
        if part(module) in MAY_IMPORT and part(target) not in MAY_IMPORT[part(module)] | {part(module)}
    ]


def relative_imports(root: Path) -> list[str]:
    return [
        f"{module}, line {node.lineno}"
        for module, tree in sources(root).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]


def circles(root: Path) -> list[str]:
    modules = sources(root)
    graph = {module: set(imported(tree, modules)) - {module} for module, tree in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def without_docstring(root: Path) -> list[str]:
    return [name for module, tree in sources(root).items() for name in undocumented(tree, module)]


def undocumented(node: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    if ast.get_docstring(node) is None:
        yield name
    for child in node.body:
        if getattr(child, "name", "_").startswith("_"):
            continue
        if isinstance(child, ast.ClassDef):
            yield from undocumented(child, f"{name}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(child) is None:
            yield f"{name}.{child.name}"


def function_lengths(root: Path) -> dict[str, int]:
    return {
        f"{module}, line {node.lineno}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for module, tree in sources(root).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def long_functions(root: Path) -> list[str]:
    lengths = function_lengths(root)
    over_60 = [name for name, lines in lengths.items() if lines > 60]
    over_30 = [name for name, lines in lengths.items() if lines > 30]
    return over_60 + (over_30 if len(over_30) > len(lengths) / 10 else [])


def long_files(root: Path) -> list[str]:
    return [str(path) for path in root.rglob("*.py") if len(path.read_text(encoding="utf-8").splitlines()) > 400]


def core_lines(root: Path) -> int:
    return sum(len((root / name).read_text(encoding="utf-8").splitlines()) for name in CORE_FILES)


def wrong_exports(package: str) -> list[str]:
    """Names in `__all__` that do not exist, or all of them if they are not sorted: constants, classes, functions."""
    module = importlib.import_module(package)
    names = list(getattr(module, "__all__", []))
    if names != sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)):
        return names
    return [name for name in names if not hasattr(module, name)]


def heavy_modules_after(code: str) -> set[str]:
    """Which of the slow packages are loaded once a fresh interpreter has run `code`."""
    probe = f"{code}\nimport sys; sys.stderr.write('LOADED ' + ' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120)
    assert "LOADED" in run.stderr, run.stderr
    return {"torch", "transformers"} & set(run.stderr.rpartition("LOADED")[2].split())


SHOW_HELP = """
import sys
from outrider.cli import main
sys.argv = ["outrider", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


# --- the real tree ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check", [upward_imports, relative_imports, circles, without_docstring, long_functions, long_files]
)
def test_the_source_has_no_findings(check):
    assert check(SOURCE) == []


def test_the_core_is_under_1000_lines():
    assert core_lines(SOURCE) < 1000


@pytest.mark.parametrize("package", ["outrider", *(f"outrider.{path.parent.name}" for path in SOURCE.glob("*/*init*"))])
def test_exported_names_are_sorted_and_exist(package):
    assert wrong_exports(package) == []


@pytest.mark.parametrize("code", ["import outrider", "import outrider; dir(outrider)", SHOW_HELP])
def test_importing_and_help_load_neither_torch_nor_transformers(code):
    assert heavy_modules_after(code) == set()


# --- planted faults -----------------------------------------------------------------------------------------------


def plant(root: Path, files: dict[str, str]) -> Path:
    """A package `outrider` with these files."""
    for name, text in {"__init__.py": '"""Planted."""', **files}.items():
        path = root / "outrider" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root / "outrider"


PLANTED = {
    "core imports the engine": (upward_imports, {"core.py": "from outrider.engine import E", "engine.py": "E = 1"}),
    "a drafter imports the engine": (
        upward_imports,
        {"drafters/a.py": "def f():\n    import outrider.engine", "engine.py": ""},
    ),
    "a model imports a drafter": (
        upward_imports,
        {"models/a.py": "from outrider.drafters import b", "drafters/__init__.py": "", "drafters/b.py": ""},
    ),
    "a rule imports the facade": (upward_imports, {"rules/a.py": "from outrider import Draft"}),
    "an import for type checking only": (
        upward_imports,
        {"tree.py": "if TYPE_CHECKING:\n    from outrider.engine import E", "engine.py": "E = 1"},
    ),
    "a relative import": (relative_imports, {"a.py": "from .b import c", "b.py": "c = 1"}),
    "two modules in a circle": (
        circles,
        {"a.py": "from outrider.b import c", "b.py": "from outrider import a"},
    ),
    "a module without docstring": (without_docstring, {"a.py": "x = 1"}),
    "a function without docstring": (without_docstring, {"a.py": '"""A."""\ndef f(): pass'}),
    "a class without docstring": (without_docstring, {"a.py": '"""A."""\nclass C: pass'}),
    "a method without docstring": (
        without_docstring,
        {"a.py": '"""A."""\nclass C:\n    """C."""\n    async def f(self): pass'},
    ),
    "a function of 61 lines": (
        long_functions,
        {"a.py": "def f():\n" + "    x = 1\n" * 60 + "def g(): pass\n" * 20},
    ),
    "one function in five of 31 lines": (
        long_functions,
        {"a.py": "def f():\n" + "    x = 1\n" * 30 + "def g(): pass\n" * 4},
    ),
    "a file of 401 lines": (long_files, {"a.py": "x = 1\n" * 401}),
}

ALLOWED = {
    "a rule imports the core": (upward_imports, {"rules/a.py": "from outrider.core import D", "core.py": "D = 1"}),
    "a server imports the engine": (
        upward_imports,
        {"serving/a.py": "from outrider.engine import E", "engine.py": "E = 1"},
    ),
    "a chain of imports": (circles, {"a.py": "from outrider import b", "b.py": "import outrider.c", "c.py": ""}),
    "private names": (without_docstring, {"a.py": '"""A."""\ndef _f(): pass\nclass _C: pass'}),
    "a function of 60 lines among short ones": (
        long_functions,
        {"a.py": "def f():\n" + "    x = 1\n" * 59 + "def g(): pass\n" * 20},
    ),
    "a file of 400 lines": (long_files, {"a.py": "x = 1\n" * 400}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name, tmp_path):
    check, files = PLANTED[name]
    assert check(plant(tmp_path, files)) != []


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_is_not_found(name, tmp_path):
    check, files = ALLOWED[name]
    assert check(plant(tmp_path, files)) == []


def test_a_core_that_is_too_long_is_found(tmp_path):
    root = plant(tmp_path, {**dict.fromkeys(CORE_FILES, ""), "tree.py": "x = 1\n" * 600, "core.py": "# why\n" * 400})
    assert core_lines(root) == 1000


@pytest.mark.parametrize(
    "export", ['__all__ = ["missing"]', '__all__ = ["b", "a"]\na = b = 1', '__all__ = ["A", "B1"]\nA = 1']
)
def test_a_wrong_export_is_found(export, tmp_path, monkeypatch):
    (tmp_path / "planted_exports.py").write_text(export, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted_exports", raising=False)
    importlib.invalidate_caches()
    assert wrong_exports("planted_exports") != []


def test_a_heavy_import_is_found():
    assert "torch" in heavy_modules_after("import outrider; outrider.Draft")
