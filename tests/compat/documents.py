"""All documents of the corpus, by the name of their file."""

from __future__ import annotations

from tests.compat.corpus import Document
from tests.compat.writers import nights, site, store


def all_documents() -> dict[str, Document]:
    return {**store.documents(), **nights.documents(), **site.documents()}
