"""The Python snippets of a page, run from top to bottom as a reader would type them."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping
    from types import CodeType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"reference/mistakes.md"}
"""Pages whose programs are run by the generator of the page."""

_BLOCK = re.compile(
    r"(?:^<!-- program: ([^:\n]+\.py)[^\n]* -->\n)?^( *)```python[^\n]*\n(.*?)^\2```", re.M | re.S
)
_DEFINES = (
    *(ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
    *(ast.Assign, ast.AnnAssign),
)


class Snippet(NamedTuple):
    """A Python block of a page, and the names that earlier programs define."""

    place: str
    text: str
    before: list[str]

    def run(self, runner: asyncio.Runner, names: dict[str, Any], **replaced: str) -> None:
        """Run it in this namespace, with some texts replaced.

        Fails for a name that one of its functions would not find.
        """
        code = self._code(names, replaced)
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, names))
        else:
            exec(code, names)
        self._check(code, names)

    async def run_within(self, names: dict[str, Any], **replaced: str) -> None:
        """The same for a snippet that awaits, on the running loop."""
        code = self._code(names, replaced)
        await eval(code, names)
        self._check(code, names)

    def _code(self, names: dict[str, Any], replaced: Mapping[str, str]) -> CodeType:
        for program in self.before:
            defined: dict[str, Any] = {"__name__": __name__}  # it is not run as a program
            exec(_defined_in(program), defined)
            names |= {**defined, **names}
        text = self.text
        for old, new in replaced.items():
            assert old in text, f"{self.place} is without {old!r}"
            text = text.replace(old, new)
        code: CodeType = compile(text, self.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return code

    def _check(self, code: CodeType, names: dict[str, Any]) -> None:
        missing = {*_globals_of(code)} - {*names, *_stored_by(code)} - {*dir(builtins)}
        assert not missing, f"{self.place}: {sorted(missing)} are imported nowhere"


def snippets(page: str) -> list[Snippet]:
    """The Python blocks of a page, except whole programs and their sections."""
    found: list[Snippet] = []
    before: list[str] = []
    for number, (program, _, block) in enumerate(_BLOCK.findall((DOCS / page).read_text())):
        if program:
            before.append(program)
        else:
            found.append(Snippet(f"{page}, block {number}", textwrap.dedent(block), [*before]))
    return found


def pages_with_snippets() -> list[str]:
    """The pages with at least one."""
    pages = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]
    return [page for page in pages if page not in GENERATED and snippets(page)]


def _defined_in(program: str) -> str:
    """The names that a program defines, without running its main part."""
    body = ast.parse((ROOT / program).read_text()).body
    return ast.unparse(ast.Module([each for each in body if isinstance(each, _DEFINES)], []))


def _globals_of(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _globals_of(constant)


def _stored_by(code: CodeType) -> list[str]:
    """Including those in a loop without iterations."""
    instructions = dis.get_instructions(code)
    return [each.argval for each in instructions if each.opname == "STORE_NAME"]
