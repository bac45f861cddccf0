"""A creation that dies may be repeated, and of two at once one wins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import REFLOG_KEY, Head
from include.cvmfs.commit.create import WHITELIST_KEY, create_repository
from include.cvmfs.errors import RepositoryError
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key
from include.cvmfs.revision.repository import Repository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, master_key, signer
from tests.fakes.refused import refused

OTHER_MASTER = generate_master()
OTHER_SIGNER = generate_repository_key(FQRN, NOW)
OURS = partial(create_repository, fqrn=FQRN, master=master_key(), signer=signer())
THEIRS = partial(create_repository, fqrn=FQRN, master=OTHER_MASTER, signer=OTHER_SIGNER)


class Crash(BaseException):
    """The process dies here."""


def at_request(store: MemoryStore, number: int, action: Callable[[], object]) -> None:
    """Do something right before the request of that number, and nothing at the requests that this makes."""
    left = [number]

    def before(verb: str, key: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            store.before = lambda verb, key: None
            action()

    store.before = before


def requests() -> int:
    store, asked = MemoryStore(), []
    store.before = lambda verb, key: asked.append(key)
    OURS(store, now=NOW)
    return len(asked)


REQUESTS = range(requests())


def is_sound(store: MemoryStore, *, ours: bool = True) -> bool:
    key = master_key() if ours else OTHER_MASTER
    opened = Repository.open(store, fqrn=FQRN, public_keys=[format_public_key(key.public_key())], now=NOW)
    report = check(opened)
    named = opened.manifest.reflog
    return (report.problems, report.warnings, opened.manifest.revision) == ((), (), 0) and (
        named is not None and hash_bytes(store.objects[REFLOG_KEY]).digest == named.digest
    )


def outcome(create: Callable[[], Head]) -> bool:
    """Whether it was the one who created it; the other learns that another came first."""
    try:
        create()
    except RepositoryError as error:
        refusal = str(error)
    else:
        return True
    assert any(words in refusal for words in ("at the same time", "created with others", "already"))
    return False


@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("later", [timedelta(minutes=1), timedelta(days=3)])
def test_a_creation_that_died_anywhere_can_be_repeated(number: int, later: timedelta) -> None:
    store = MemoryStore()

    def die() -> None:
        raise Crash

    at_request(store, number, die)
    with pytest.raises(Crash):
        OURS(store, now=NOW - later)
    OURS(store, now=NOW)
    assert is_sound(store)


@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("second", [OURS, THEIRS])
def test_of_two_creators_at_once_one_wins_and_the_other_is_refused(number: int, second: Callable[..., Head]) -> None:
    store, second_won = MemoryStore(), []
    at_request(store, number, lambda: second_won.append(outcome(lambda: second(store, now=NOW + timedelta(seconds=5)))))
    first_won = outcome(lambda: OURS(store, now=NOW))
    assert [first_won, *second_won].count(True) == 1
    assert is_sound(store, ours=first_won or second is OURS)


def test_the_whitelist_of_other_keys_is_refused_and_left_alone() -> None:
    store = MemoryStore()
    THEIRS(store, now=NOW)
    kept = {WHITELIST_KEY: store.objects[WHITELIST_KEY]}
    store.objects = dict(kept)
    with refused(RepositoryError, fqrn=FQRN):
        OURS(store, now=NOW)
    assert store.objects == kept
