"""Documents are written as they were, byte for byte, and those of earlier commits are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compat.corpus import Document, folders, newest, same_json
from tests.compat.documents import all_documents

DOCUMENTS = all_documents()
READ = [
    (folder / "documents" / name, document)
    for folder in folders("documents")
    for name, document in DOCUMENTS.items()
    if document.read is not None and (folder / "documents" / name).exists()
]


def test_every_document_of_every_corpus_is_compared() -> None:
    assert {file.name for file in newest("documents").iterdir()} == set(DOCUMENTS)
    assert {file.name for folder in folders("documents") for file in (folder / "documents").iterdir()} == set(DOCUMENTS)


@pytest.mark.parametrize(("name", "document"), DOCUMENTS.items(), ids=DOCUMENTS)
def test_a_document_is_written_byte_for_byte_as_it_was(name: str, document: Document) -> None:
    written, recorded = document.data, (newest("documents") / name).read_bytes()
    if document.grows:
        assert same_json(json.loads(written), json.loads(recorded)) == []
    else:
        assert written.decode(errors="backslashreplace") == recorded.decode(errors="backslashreplace")


@pytest.mark.parametrize(("file", "document"), READ, ids=[f"{file.name}-{file.parts[-3]}" for file, _ in READ])
def test_a_document_that_an_earlier_commit_wrote_is_read_as_what_it_was(file: Path, document: Document) -> None:
    assert document.read is not None
    assert document.read(file.read_bytes()) == document.value
