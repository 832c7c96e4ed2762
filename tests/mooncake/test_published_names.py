"""Every name at the level of a module of the published package can be imported from ours. Runs on both packages.

The published one is read, not run: `./dev test python` fetches it, and $MOONCAKE_PUBLISHED is where it lies.
"""

import ast
import importlib
import os
import pathlib

import mooncake
import pytest
from processes import THEIRS

PUBLISHED = pathlib.Path(mooncake.__file__).parent if THEIRS else os.environ.get("MOONCAKE_PUBLISHED")
ours_only = pytest.mark.skipif(bool(THEIRS), reason="about what the drop-in says")


def bound(body):
    """Names that statements bind, in whatever branch."""
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield one.name
        elif isinstance(one, ast.Import | ast.ImportFrom):
            if getattr(one, "module", "") != "__future__":
                yield from ((alias.asname or alias.name).split(".")[0] for alias in one.names)
        elif isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in getattr(one, "targets", None) or [one.target]:
                whole = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                yield from (name.id for name in whole if isinstance(name, ast.Name))
        elif isinstance(one, ast.If) and "__name__" in ast.unparse(one.test):
            continue
        else:
            for part in ("body", "orelse", "finalbody"):
                yield from bound(getattr(one, part, []))
            for handler in getattr(one, "handlers", []):
                yield from bound(handler.body)


def modules():
    """Of each module of the published package its names."""
    if not PUBLISHED:
        return
    root = pathlib.Path(PUBLISHED)
    for path in sorted(root.rglob("*.py")):
        parts = ["mooncake", *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts).removesuffix(".__init__")
        yield pytest.param(name, sorted({*bound(ast.parse(path.read_text()).body)}), id=name)


def is_elsewhere(error):
    """Whether an import failed because a package of others is not installed."""
    missing = (error.name or "").partition(".")[0]
    return missing not in ("", "mooncake", "mooncrate")


@pytest.mark.skipif(not PUBLISHED, reason="the published package is not here; ./dev test python fetches it")
@pytest.mark.parametrize("module, names", [*modules()])
def test_every_name_of_a_module_can_be_imported(module, names):
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if THEIRS:
            pytest.skip(f"there it needs what is not installed: {error}")
        raise
    missing = []
    for name in names:
        try:
            getattr(found, name)
        except AttributeError:
            missing.append(name)
        except ImportError as error:
            if not is_elsewhere(error):
                missing.append(name)
    # A package whose dependencies are not all there has not bound all of its names.
    if not THEIRS or importlib.util.find_spec("torch"):
        assert not missing


def test_what_programs_ask_for_by_name_does_what_it_says():
    from mooncake.mooncake_config import _parse_bool, _parse_segment_size
    from mooncake.structured_object_store import MISSING, _choose_leaf_codec, _escape_key, _Missing

    for values, codec in [
        ([[1, 2, 3], [4, 5]], "typed_ragged"),
        ([b"one", b"two"], "bytes_ragged"),
        (["one", None, "two"], "utf8_ragged"),
        ([1, 2.0, 3], "ndarray"),
    ]:
        decision = _choose_leaf_codec(values)
        assert decision.accepted and decision.codec == codec
    assert not _choose_leaf_codec([object()]).accepted
    assert isinstance(MISSING, _Missing)
    assert [*map(_escape_key, ("plain", "a.b", "a[0]", "a\\b"))] == ["plain", "a\\.b", "a\\[0]", "a\\\\b"]
    assert _parse_segment_size("16 MB") == _parse_segment_size(16 << 20) == 16 << 20
    assert _parse_bool("yes") and not _parse_bool("off") and not _parse_bool(None)


def test_names_of_shared_memory_stay_below_its_folder():
    if THEIRS:
        pytest.importorskip("aiohttp", reason="their service is written with it")
    from mooncake.mooncake_store_service import _shm_name_to_path

    assert _shm_name_to_path("/pool") == "/dev/shm/pool" and _shm_name_to_path("../etc") is None


@ours_only
@pytest.mark.parametrize(
    "module, name, word",
    [
        ("mooncake.structured_object_store", "_encode_manifest", "built otherwise"),
        ("mooncake.mooncake_ep_buffer", "Buffer", "mooncrate-beside"),
        ("mooncake.reshard.weight", "plan_placement_transfer", "layout"),
    ],
)
def test_what_is_not_there_says_so_when_it_is_used(module, name, word):
    found = getattr(importlib.import_module(module), name)

    def inherited():
        class Own(found):
            """One of the caller's."""

        return Own

    for use in (found, lambda: found.anything, lambda: [*found], inherited):
        with pytest.raises(NotImplementedError, match=rf"{name} .*{word}"):
            use()
    assert not isinstance(1, found) and name in repr(found)


@ours_only
def test_a_name_that_nobody_has_is_none():
    with pytest.raises(ImportError):
        importlib.import_module("mooncake.no_such_module")
    for module in ("mooncake.reshard", "mooncake.structured_object_store"):
        assert not hasattr(importlib.import_module(module), "no_such_name")


@ours_only
def test_an_error_can_be_caught():
    from mooncake.shared_segment import SharedSegmentError

    assert issubclass(SharedSegmentError, Exception)


@ours_only
def test_a_module_of_others_wins(tmp_path):
    """A distribution may add the one that we do not have."""
    from conftest import python

    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "pg.py").write_text("backend_module = 'real'\n")
    code = "import sys; sys.path.append(sys.argv[1]); from mooncake.pg import backend_module as b; print(b)"
    assert python(code, tmp_path).strip() == "real"
