"""Creations are repeated or won by one of two; whitelists are renewed, and keys of stock tools imported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import REFLOG_KEY, Head
from include.cvmfs.commit.create import WHITELIST_KEY, create_repository, expiry_warning, import_keys, resign
from include.cvmfs.errors import KeyFileError, RepositoryError, SignatureError, WhitelistError
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.keys import (
    GatewayKey,
    KeyFile,
    format_public_key,
    generate_master,
    generate_repository_key,
    save_gateway_key,
    save_master,
    save_signer,
)
from include.cvmfs.format.whitelist import Whitelist
from include.cvmfs.revision.repository import Repository
from tests.fakes.edits import Crash
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, MiniRepository, master_key, opened, public_key, signer
from tests.fakes.refused import refused

OTHER_MASTER = generate_master()
OTHER_SIGNER = generate_repository_key(FQRN, NOW)
OURS = partial(create_repository, fqrn=FQRN, master=master_key(), signer=signer())
THEIRS = partial(create_repository, fqrn=FQRN, master=OTHER_MASTER, signer=OTHER_SIGNER)


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
    repository = Repository.open(store, fqrn=FQRN, public_keys=[format_public_key(key.public_key())], now=NOW)
    report = check(repository)
    named = repository.manifest.reflog
    return (report.problems, report.warnings, repository.manifest.revision) == ((), (), 0) and (
        named is not None and hash_bytes(store.objects[REFLOG_KEY]).digest == named.digest
    )


def outcome(create: Callable[[], Head]) -> bool:
    """Tell if this creation won; the other learns that another came first."""
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


# -- the whitelist is renewed by the holder of the master key only


LATER = NOW + timedelta(days=40)


def test_an_expired_whitelist_is_in_force_again(mini: MiniRepository) -> None:
    renewed = resign(mini.store, FQRN, master_key(), now=LATER, validity=timedelta(days=7))
    assert renewed.expires == LATER + timedelta(days=7)
    assert opened(mini.store, now=LATER).trusted.whitelist == renewed


def test_another_certificate_can_be_listed_beside(mini: MiniRepository) -> None:
    other = generate_repository_key(FQRN, NOW)
    for _ in range(2):
        renewed = resign(mini.store, FQRN, master_key(), now=NOW, certificates=(other.certificate,))
        assert len(renewed.fingerprints) == 2
    opened(mini.store)


def test_what_another_signer_listed_meanwhile_is_not_lost(mini: MiniRepository) -> None:
    other = generate_repository_key(FQRN, NOW)

    def list_other(verb: str, key: str) -> None:
        if key == WHITELIST_KEY and verb in ("put", "replace"):
            mini.store.before = lambda verb, key: None
            resign(mini.store, FQRN, master_key(), now=NOW, certificates=(other.certificate,))

    mini.store.before = list_other
    with refused(WhitelistError, fqrn=FQRN):
        resign(mini.store, FQRN, master_key(), now=NOW)
    assert len(Whitelist.parse(mini.store.get(WHITELIST_KEY)).whitelist.fingerprints) == 2


def test_another_master_key_is_refused(mini: MiniRepository) -> None:
    before = mini.store.get(WHITELIST_KEY)
    with refused(SignatureError, what="whitelist"):
        resign(mini.store, FQRN, generate_master(), now=NOW)
    assert mini.store.get(WHITELIST_KEY) == before


def test_an_absent_whitelist_and_impossible_times_are_refused(mini: MiniRepository) -> None:
    for days in (0, -1, 1000):
        with refused(WhitelistError, fqrn=FQRN):
            resign(mini.store, FQRN, master_key(), now=NOW, validity=timedelta(days=days))
    mini.store.delete([WHITELIST_KEY])
    with refused(WhitelistError, fqrn=FQRN):
        resign(mini.store, FQRN, master_key(), now=NOW)


@pytest.mark.parametrize("data", [None, b"", b"garbage", b"half"])
def test_a_lost_or_damaged_whitelist_is_made_again(mini: MiniRepository, data: bytes | None) -> None:
    whole = mini.store.get(WHITELIST_KEY)
    mini.store.delete([WHITELIST_KEY])
    if data is not None:
        mini.store.put(WHITELIST_KEY, whole[: len(whole) // 2] if data == b"half" else data)
    renewed = resign(mini.store, FQRN, master_key(), now=NOW, own=signer().certificate)
    assert len(renewed.fingerprints) == 1
    opened(mini.store)


def test_the_key_that_signs_now_must_be_listed(mini: MiniRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    own = signer()
    with monkeypatch.context() as patch:
        patch.setattr("tests.fakes.minirepo.signer", lambda: generate_repository_key(FQRN, NOW))
        mini.write_whitelist()
    with refused(WhitelistError, fqrn=FQRN):
        resign(mini.store, FQRN, master_key(), now=NOW)
    resign(mini.store, FQRN, master_key(), now=NOW, certificates=(own.certificate,))
    opened(mini.store)


@pytest.mark.parametrize(
    ("left_h", "words"),
    [(13, None), (12, None), (11.5, "expires in 11.5 hours"), (0, "expired at"), (-5, "expired at")],
)
def test_the_end_is_announced_half_a_day_before(left_h: float, words: str | None) -> None:
    whitelist = Whitelist(FQRN, NOW, NOW + timedelta(hours=left_h), ())
    warning = expiry_warning(whitelist, NOW)
    assert (warning is None) if words is None else (words in (warning or "") and "repo resign" in (warning or ""))


# -- keys of stock repositories


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    save_master(folder, FQRN, master_key())
    save_signer(folder, FQRN, signer())
    save_gateway_key(folder, FQRN, GatewayKey("id", "secret"))
    return folder


def test_keys_are_taken_over_once_and_privately(mini: MiniRepository, stock: Path, tmp_path: Path) -> None:
    target = tmp_path / "keys"
    dry = import_keys(mini.store, FQRN, stock, target, now=NOW, dry_run=True)
    assert len(dry.copied) == 5
    assert not target.exists()
    done = import_keys(mini.store, FQRN, stock, target, now=NOW)
    assert set(done.copied) == set(KeyFile)
    for kind in KeyFile:
        path = kind.path(target, FQRN)
        assert path.read_bytes() == kind.path(stock, FQRN).read_bytes()
        assert path.stat().st_mode & 0o777 == kind.mode
    again = import_keys(mini.store, FQRN, stock, target, now=NOW)
    assert (again.copied, set(again.present)) == ((), set(KeyFile))


def test_a_gateway_without_the_master_key_is_enough(mini: MiniRepository, stock: Path, tmp_path: Path) -> None:
    KeyFile.MASTER.path(stock, FQRN).unlink()
    done = import_keys(mini.store, FQRN, stock, tmp_path / "keys", now=NOW)
    assert done.absent == (KeyFile.MASTER,)


@pytest.mark.parametrize("kind", [KeyFile.PUBLIC, KeyFile.CERTIFICATE, KeyFile.REPOSITORY, KeyFile.MASTER])
def test_keys_of_something_else_are_refused(mini: MiniRepository, stock: Path, tmp_path: Path, kind: KeyFile) -> None:
    other = tmp_path / "other"
    save_master(other, FQRN, generate_master())
    save_signer(other, FQRN, generate_repository_key(FQRN, NOW))
    kind.path(stock, FQRN).write_bytes(kind.path(other, FQRN).read_bytes())
    with pytest.raises((KeyFileError, SignatureError)):
        import_keys(mini.store, FQRN, stock, tmp_path / "keys", now=NOW)
    assert not (tmp_path / "keys").exists()


def test_what_is_there_is_not_overwritten(mini: MiniRepository, stock: Path, tmp_path: Path) -> None:
    save_gateway_key(tmp_path / "keys", FQRN, GatewayKey("other", "other"))
    with refused(KeyFileError, path=str(KeyFile.GATEWAY.path(tmp_path / "keys", FQRN))):
        import_keys(mini.store, FQRN, stock, tmp_path / "keys", now=NOW)
    KeyFile.PUBLIC.path(stock, FQRN).unlink()
    with refused(KeyFileError, path=str(KeyFile.PUBLIC.path(stock, FQRN))):
        import_keys(mini.store, FQRN, stock, tmp_path / "keys", now=NOW)
    assert format_public_key(master_key().public_key()) == public_key()
