"""Lists of files: both forms are read alike, and each fault has its line; pure."""

from __future__ import annotations

import json

import pytest

from include.cli.file_lists import ListedFile, read_list
from include.stageout.files import FileKind, FileToTransfer

HEAD = "source,source_name,destination,destination_name,size,kind\n"
FILE = FileToTransfer("pisa", "/a", "bari", "/b", kind=FileKind.LOG, size=7)
LINE = {"source": "pisa", "source_name": "/a", "destination": "bari", "destination_name": "/b"}


def faults_of(*lines):
    return [str(fault) for fault in read_list(lines)[1]]


def test_csv_and_json_lines_give_the_same_files():
    by_csv = read_list([HEAD, "\n", "pisa,/a,bari,/b, 7 ,log\n"])
    by_json = read_list(["\n", "\n", json.dumps({**LINE, "size": 7, "kind": "log", "dataset": None})])
    assert by_csv == by_json == ([ListedFile(3, FILE)], [])


def test_spellings_of_a_checksum_empty_cells_and_quoted_ones_are_read():
    by_csv, _ = read_list([HEAD.replace("size,kind", "checksum"), "pisa,/a,bari,/b,ADLER32:A1B2C3D"])
    assert by_csv == read_list(["\n", json.dumps({**LINE, "checksum": "adler32:0a1b2c3d"})])[0]
    assert read_list([HEAD, "pisa,/a,bari,/b,,\n"])[0] == [ListedFile(2, FileToTransfer("pisa", "/a", "bari", "/b"))]
    assert read_list([HEAD, 'pisa,"/a,1",bari,/b,,\n'])[0][0].file.source_name == "/a,1"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("pisa,/a,bari,/b\n", "it has 4 cells, not 6 as the head"),
        ("pisa,/a,bari,,7,log\n", "`destination_name` is missing"),
        ("pisa,/a,bari,/b,-7,log\n", "`size` is not a whole number"),
        ("pisa,/a,bari,/b,7.5,log\n", "`size` is not a whole number"),
        ("pisa,/a,bari,/b,²,log\n", "`size` is not a whole number"),
        ("pisa,/a,bari,/b,7,tape\n", "`kind` is not one of output, log"),
        ('pisa,"/a,bari,/b,7,log\n', "it is not CSV: unexpected end of data"),
    ],
)
def test_a_fault_of_a_csv_line_is_named(line, fault):
    assert faults_of(HEAD, line) == [f"line 2: {fault}"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "it is not a JSON object"),
        (json.dumps({**LINE, "size": "7"}), "`size` is not a whole number"),
        (json.dumps({**LINE, "size": True}), "`size` is not a whole number"),
        (json.dumps({**LINE, "dataset": 7}), "`dataset` is not a text"),
        (json.dumps({**LINE, "kind": ["log"]}), "`kind` is not a text"),
    ],
)
def test_a_fault_of_a_json_line_is_named(line, fault):
    assert faults_of(json.dumps(LINE), line) == [f"line 2: {fault}"]


def test_all_faults_are_named_and_the_good_lines_are_kept():
    (fault,) = faults_of(json.dumps({**LINE, "url": "x"}))
    assert fault.startswith("line 1: there is no field 'url'; there are source, source_name,")

    files, faults = read_list([json.dumps(LINE), "{", json.dumps(LINE), "x"])
    assert ([file.line for file in files], [fault.line for fault in faults]) == ([1, 3], [2, 4])


def test_a_column_twice_and_an_endless_list_are_refused(monkeypatch):
    assert faults_of("source,source\n", "a,b\n") == ["line 1: a column is there twice"]
    monkeypatch.setattr("include.cli.file_lists.MAX_LINES", 2)
    assert faults_of(*[json.dumps(LINE)] * 3) == ["line 3: the list has more than 2 lines"]
    assert read_list([]) == ([], [])
