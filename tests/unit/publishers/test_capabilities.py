"""The table of what each way to publish can do: complete, with a cure for every refusal, and asked by `require`."""

from __future__ import annotations

import pytest

from docs.generate_publishers import PAGE, render
from include.publishers.capabilities import TABLE, Loss, Operation, OperationOutcome, PublishRoute, cell, require
from include.publishers.errors import Lossy, NotSupported
from tests.fakes.refused import refused

FQRN = "nights.example.org"
CELLS = [
    pytest.param(way, operation, id=f"{way.name}-{operation.name}") for operation in Operation for way in PublishRoute
]


def test_every_operation_is_decided_for_every_way() -> None:
    assert {operation: set(row) for operation, row in TABLE.items()} == {one: set(PublishRoute) for one in Operation}


@pytest.mark.parametrize(("way", "operation"), CELLS)
def test_what_is_not_supported_names_the_path_and_the_cure(way: PublishRoute, operation: Operation) -> None:
    found = cell(way, operation)
    assert found.reason
    assert (found.outcome is OperationOutcome.LOSSY) == (found.loss is not None)
    if found.outcome is OperationOutcome.SUPPORTED:
        assert require(way, operation, fqrn=FQRN, path="/a") is found
        return
    expected = NotSupported if found.outcome is OperationOutcome.REFUSED else Lossy
    with pytest.raises(expected) as refused:
        require(way, operation, fqrn=FQRN, path="/a/b")
    assert refused.value.path == "/a/b"
    assert not refused.value.retryable
    for part in (FQRN, "/a/b", found.reason, found.cure):
        assert part in str(refused.value)


@pytest.mark.parametrize(("way", "operation"), CELLS)
def test_only_a_loss_that_is_named_is_allowed(way: PublishRoute, operation: Operation) -> None:
    found = cell(way, operation)
    if found.outcome is OperationOutcome.REFUSED:
        with pytest.raises(NotSupported):
            require(way, operation, fqrn=FQRN, path="/a", allow_lossy=set(Loss))
    elif found.outcome is OperationOutcome.LOSSY:
        with refused(Lossy, fqrn=FQRN):
            require(way, operation, fqrn=FQRN, path="/a", allow_lossy=set(Loss) - {found.loss})
        assert require(way, operation, fqrn=FQRN, path="/a", allow_lossy=[found.loss] if found.loss else []) is found


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert render(page) == page, "run `make docs`"
