"""Files of an answer are whole or not there; an answer that was there before is lost only to a whole new one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cpsolver.inputs.errors import InputError
from cpsolver.inputs.output import check_writable, deliver_report, draft_of, write_file, write_new_file


def files_of(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    write_file(target, "one\n")
    write_file(target, "two\n")
    assert target.read_text() == "two\n"
    assert files_of(tmp_path) == ["answer.json"]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_what_goes_wrong_halfway_leaves_all_as_it_was(there: bool, kind: type[BaseException], tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    if there:
        target.write_text("old")
    with pytest.raises(kind):
        _write_half(target, kind)
    assert files_of(tmp_path) == (["answer.json"] if there else [])
    assert not there or target.read_text() == "old"


def test_a_mode_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "real.txt"
    target.write_text("old")
    target.chmod(0o640)
    write_file(target, "new")
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_followed(there: bool, tmp_path: Path) -> None:
    target, link = tmp_path / "real.txt", tmp_path / "link.txt"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    told = r"link.txt: cannot be written: it is a link to .*real.txt"
    with pytest.raises(InputError, match=told):
        write_file(link, "new")
    with pytest.raises(InputError, match=told):
        check_writable(str(link))
    assert link.is_symlink()
    assert not there or target.read_text() == "old"
    with (tmp_path / "out").open("w") as stdout:
        subprocess.run(
            [sys.executable, "-c", "from cpsolver.inputs.output import write_file; write_file('/dev/stdout', 'new')"],
            stdout=stdout,
            check=True,
        )
    assert (tmp_path / "out").read_text() == "new"


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("-3", 80), ("1", 40), ("40", 40), ("120", 120), ("x", 80)])
def test_a_report_has_columns_whatever_is_said_of_the_terminal(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    deliver_report("word " * 100)
    lines = capsys.readouterr().out.splitlines()
    assert width - 5 <= max(map(len, lines)) <= width


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    write_file("/dev/null", "gone")
    assert not Path("/dev/null").is_file()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere/x: cannot be written: No such file or directory"):
        write_file(tmp_path / "nowhere" / "x", "text")


def test_a_new_file_replaces_one_with_force_only(tmp_path: Path) -> None:
    target = str(tmp_path / "spec.yaml")
    write_new_file(target, "one", force=False)
    with pytest.raises(InputError, match="is there already"):
        write_new_file(target, "two", force=False)
    assert Path(target).read_text() == "one"
    write_new_file(target, "two", force=True)
    assert Path(target).read_text() == "two"


def _write_half(target: Path, wrong: type[BaseException]) -> None:
    with draft_of(target) as draft:
        draft.write_text("half of the ans")
        raise wrong
