"""Writing: what killed processes leave is removed, what others hold is not, and what can't be written is said."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
import torch

from workbook import checksums, files
from workbook.errors import DamagedFileError, OutputError
from workbook.files import ROOT, alone, atomic_file, atomic_folder, cache_path, make_folder, remove_scratch, writing

WRITES = """
import os, sys
from workbook.files import atomic_file, atomic_folder
writing = [atomic_file(Path(sys.argv[1], "a.txt")), atomic_folder(Path(sys.argv[1], "b"))]
for one in writing:
    print(one.__enter__())
sys.stdout.flush()
"""


def python(program, *arguments, **environment):
    """A program in a process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from pathlib import Path\n{program}", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def put(write, made):
    """Something into what is being written."""
    (made if write is atomic_file else made / "inside").write_text("a")


# What is left, and what is held


@pytest.mark.parametrize("write", [atomic_file, atomic_folder])
def test_what_a_killed_process_left_is_removed_by_the_next_that_writes(tmp_path, write):
    """Whatever it is that either writes; what looks alike and holds no lock is somebody's own."""
    others = tmp_path / ".workbook-settings"
    (others / "files").mkdir(parents=True)
    (tmp_path / ".workbook-_empty12").mkdir()  # killed before it was locked
    with python(f"{WRITES}\nsys.stdin.read()", tmp_path) as living:
        held = [Path(living.stdout.readline().strip()).parents[1] for _ in range(2)]
        with python(f"{WRITES}\nos._exit(1)", tmp_path) as killed:
            left = [Path(path).parents[1] for path in killed.communicate()[0].split()]
        assert all(path.is_dir() for path in (*left, *held))
        with write(tmp_path / "c") as made:
            assert {*tmp_path.iterdir()} == {others, *held, made.parents[1]}
            put(write, made)
        living.kill()
    assert {*tmp_path.iterdir()} == {others, *held, tmp_path / "c"}
    remove_scratch(tmp_path)
    assert {*tmp_path.iterdir()} == {others, tmp_path / "c"}


@pytest.mark.parametrize("number", range(6))
def test_killed_while_it_tidies_up(tmp_path, number):
    """Before each file and folder that it removes: what is left is known as a leftover."""
    program = """
import os, sys
from workbook.files import atomic_folder
left = int(sys.argv[2])
def hook(event, given):
    global left
    if event in ("os.remove", "os.rmdir"):
        if not left:
            os._exit(1)
        left -= 1
with atomic_folder(Path(sys.argv[1], "a")) as made:
    (made / "b").mkdir()
    (made / "b" / "c").touch()
    sys.addaudithook(hook)
    raise KeyError
"""
    with python(program, tmp_path, number) as killed:
        assert killed.communicate() == ("", "")
    assert len([*tmp_path.iterdir()]) == 1
    remove_scratch(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_has_one_writer_by_whatever_path(tmp_path):
    (tmp_path / "link").symlink_to("folder")
    program = (
        "import sys; from workbook.files import alone\nwith alone(Path(sys.argv[1])): print(1, flush=True), input()"
    )
    with python(program, tmp_path / "folder") as other:
        assert other.stdout.readline() == "1\n"
        for path in (tmp_path / "folder", tmp_path / "link", tmp_path / "folder" / ".." / "folder"):
            with pytest.raises(filelock.Timeout), alone(path):
                pass
        other.communicate("\n")
    with alone(tmp_path / "link"):
        pass
    assert [*(tmp_path / "folder").iterdir()] == []


MANY = """
import sys
from workbook.files import atomic_file
for number in range(600):
    with atomic_file(Path(sys.argv[1], f"{sys.argv[2]}.txt")) as made:
        made.write_text(str(number))
"""


def test_processes_that_write_into_one_folder_are_not_in_each_others_way(tmp_path):
    """Each looks for leftovers while the others make their hidden folders."""
    running = [python(MANY, tmp_path, name) for name in "abcd"]
    assert [one.communicate()[1] for one in running] == [""] * 4
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {f"{name}.txt": "599" for name in "abcd"}


ONCE = """
import sys, time
from workbook.checksums import make_once, write_checksums
from workbook.files import cache_path
def write(folder):
    with open(sys.argv[1], "a") as made:
        made.write("made ")
    (folder / "rows.arrow").write_text("a")
    time.sleep(0.01)
    write_checksums(folder, ["rows.arrow"])
for number in range(40):
    make_once(cache_path("tables", str(number)), write)
    print(cache_path("tables", str(number), "rows.arrow").read_text(), end="")
"""


def test_what_the_cache_keeps_is_made_by_one_of_several_processes(tmp_path):
    running = [python(ONCE, tmp_path / "made", WORKBOOK_CACHE=str(tmp_path / "cache")) for _ in range(3)]
    assert [one.communicate() for one in running] == [("a" * 40, "")] * 3
    assert (tmp_path / "made").read_text() == "made " * 40


def test_a_lock_of_others_is_left(tmp_path):
    (tmp_path / ".lock").write_text("mine")
    with alone(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not files.is_empty(tmp_path)


@pytest.mark.parametrize("name", ["replaced", "files", ".lock", ".workbook-abcdefgh"])
def test_a_folder_of_any_name_is_replaced(tmp_path, name):
    for content in ("old", "new"):
        with atomic_folder(tmp_path / name) as made:
            (made / content).touch()
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path(name), Path(name, "new")]


def test_a_long_name_is_written(tmp_path):
    for write in (atomic_file, atomic_folder):
        long = tmp_path / write.__name__.ljust(250, "n")
        with write(long) as made:
            put(write, made)
        assert long.exists()
        with pytest.raises(OutputError, match="File name too long"), write(tmp_path / ("n" * 300)) as made:
            put(write, made)


# What can't be written


def test_a_full_disk_under_torch_save():
    full = Path("/dev/full")
    said = r"^Could not write /dev/full: No room for all of it\. Choose a folder"
    with pytest.raises(OutputError, match=said), writing(full):
        torch.save({"a": torch.zeros(3000)}, full)
    with pytest.raises(RuntimeError, match=r"^another$"), writing(full):
        raise RuntimeError("another")


def test_a_cache_without_a_home(monkeypatch):
    """As under a user id that the system does not know."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("WORKBOOK_CACHE", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OutputError, match=r"Expected a home folder for the cache, got none.*in WORKBOOK_CACHE"):
        cache_path("stages")


@pytest.mark.parametrize(
    ("cache", "reason"), [("/proc/none", "Permission denied"), (f"/tmp/{'n' * 300}", "File name too long")]
)
def test_a_cache_that_can_not_be(monkeypatch, cache, reason):
    monkeypatch.setenv("WORKBOOK_CACHE", cache)
    with pytest.raises(OutputError, match=f"Could not write {cache}.*: {reason}"):
        make_folder(cache_path("stages"))


def test_a_name_that_is_not_utf8_here(tmp_path):
    """Python takes names for ASCII; libraries that read and write there take them for UTF-8."""
    program = "import sys; from workbook import files; files.make_folder(Path(sys.argv[1])); files.cache_path()"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "WORKBOOK_CACHE": str(tmp_path / "Bücher")}
    for folder in ("Bücher", "books"):
        with python(program, tmp_path / folder, **plain) as ran:
            _, err = ran.communicate()
        assert "OutputError: Expected names of folders that UTF-8 can hold, got" in err
        assert "Set PYTHONUTF8=1, or choose a folder with a plain name." in err
        assert {path.name for path in tmp_path.iterdir()} <= {"books"}
    with python(program, tmp_path / "Bücher", **plain | {"PYTHONUTF8": "1"}) as ran:
        ran.communicate()
    assert ran.returncode == 0


def test_a_required_file_has_a_checksum(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    checksums.write_checksums(tmp_path, ["a.txt"])
    checksums.verify_checksums(tmp_path, "Way out.", required=["a.txt"])
    with pytest.raises(DamagedFileError, match=r"expected a checksum of b\.txt, got none\. Way out\."):
        checksums.verify_checksums(tmp_path, "Way out.", required=["a.txt", "b.txt"])
