"""The encoders of rows: the extension, compiled for the tests, and asyncpg's.

White box: the extension is put where an installation with it has it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate.postgres.copying import rows
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The extension. Skips without a C compiler or the headers of Python, unless
    `SLUICEGATE_REQUIRE` names `compiler`.
    """
    pytest.importorskip("hatchling")
    from hatch_build import compile_extension

    source = Path(rows.__file__).with_name("_rows.c")
    try:
        built = compile_extension(source, tmp_path_factory.mktemp("compiled"))
    except RuntimeError as error:
        skip_or_fail("compiler", str(error))
    spec = importlib.util.spec_from_file_location("_rows", built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["extension", "asyncpg"])
def encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The encoder that the sink prefers: asyncpg's if the extension is not there."""
    if request.param == "extension":
        module = request.getfixturevalue("compiled")
        monkeypatch.setattr(rows, "codes", module.codes)
        monkeypatch.setattr(rows, "encode", module.encode, raising=False)
    else:
        monkeypatch.setattr(rows, "codes", {})
    rows.codes_of.cache_clear()
    yield request.param
    rows.codes_of.cache_clear()
