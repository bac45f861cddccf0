"""Documents are written as they were, byte for byte, and those of earlier commits are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compat.corpus import Document, folders, newest, same_json
from tests.compat.documents import all_documents

DOCUMENTS = all_documents()
READ = {name: document for name, document in DOCUMENTS.items() if document.read is not None}


def test_every_document_of_the_newest_corpus_is_compared() -> None:
    assert {file.name for file in (newest() / "documents").iterdir()} == set(DOCUMENTS)


@pytest.mark.parametrize(("name", "document"), DOCUMENTS.items(), ids=DOCUMENTS)
def test_a_document_is_written_byte_for_byte_as_it_was(name: str, document: Document) -> None:
    written, recorded = document.data, _recorded(newest(), name)
    if document.grows:
        assert same_json(json.loads(written), json.loads(recorded)) == []
    else:
        assert written.decode(errors="backslashreplace") == recorded.decode(errors="backslashreplace")


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
@pytest.mark.parametrize(("name", "document"), READ.items(), ids=READ)
def test_a_document_that_an_earlier_commit_wrote_is_read_as_what_it_was(
    folder: Path, name: str, document: Document
) -> None:
    assert document.read is not None
    assert document.read(_recorded(folder, name)) == document.value


def _recorded(folder: Path, name: str) -> bytes:
    return (folder / "documents" / name).read_bytes()
