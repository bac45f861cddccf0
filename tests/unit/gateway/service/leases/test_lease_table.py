"""Leases: who gets one, how long it lasts, and what survives."""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from include.cvmfs.format.hashes import ObjectHash
from include.gateway.protocol import LeasePath, overlap
from include.gateway.service.config import ConfigError
from include.gateway.service.leases.lease_rows import StateError, token_of
from include.gateway.service.leases.lease_table import Busy, Granted, LeaseGone, LeaseTable, Spent, digest_of
from include.gateway.service.requests import Refused
from tests.fakes.gateway_service import ManualClock
from tests.fakes.refused import refused

REPOSITORY = "r.example.org"
OLD, NEW = ObjectHash.parse("1" * 40 + "C"), ObjectHash.parse("2" * 40 + "C")
OpenTable = Callable[[], LeaseTable]


def any_key(_: object) -> bool:
    return True


def take(table: LeaseTable, path: str, repository: str = REPOSITORY, **more: int) -> Granted:
    outcome = table.acquire(LeasePath(repository, path), key_id="k", hostname="h", version=3, **more).result()
    assert isinstance(outcome, Granted)
    return outcome


def busy(table: LeaseTable, path: str) -> float:
    outcome = table.acquire(LeasePath(REPOSITORY, path), key_id="k", hostname="h", version=3).result()
    assert isinstance(outcome, Busy)
    return outcome.remaining_ns / 1e9


def test_above_and_below_exclude_each_other_until_the_drop(table: LeaseTable) -> None:
    held = take(table, "/a/b")
    for path in ("", "/a", "/a/b", "/a/b/c"):
        assert busy(table, path) == 100
    take(table, "/a/b", "other.example.org")
    table.drop(digest_of(held.token), any_key).result()
    take(table, "")


def test_of_many_who_ask_at_once_exactly_one_gets_it(table: LeaseTable) -> None:
    asked = [
        table.acquire(
            LeasePath(REPOSITORY, "/a" if number % 2 else "/a/b"), key_id="k", hostname=f"h{number}", version=3
        )
        for number in range(8)
    ]
    assert [isinstance(one.result(), Busy) for one in asked].count(False) == 1


def test_a_busy_path_tells_when_the_last_lease_in_the_way_ends(table: LeaseTable, clock: ManualClock) -> None:
    take(table, "/a")
    clock.advance(30)
    take(table, "/b")
    assert busy(table, "") == 100
    assert busy(table, "/a") == 70


def test_an_expired_lease_blocks_nothing_and_can_still_be_dropped(table: LeaseTable, clock: ManualClock) -> None:
    held = take(table, "/a")
    clock.advance(100)
    assert table.listed() == []
    assert table.valid(digest_of(held.token)) is None
    table.drop(digest_of(held.token), any_key).result()
    take(table, "/a")


def test_the_wall_clock_changes_no_deadline(table: LeaseTable, clock: ManualClock) -> None:
    held = take(table, "/a")
    clock.wall += 10**9
    assert table.valid(digest_of(held.token))
    clock.wall -= 2 * 10**9
    assert busy(table, "/a") == 100


def test_tokens_are_long_random_and_kept_as_digests_only(table: LeaseTable, tmp_path: Path) -> None:
    tokens = [take(table, f"/{number}").token for number in range(20)]
    assert len(set(tokens)) == 20
    assert all(len(token) == 56 and token.endswith("====") for token in tokens)
    assert tokens[0] not in repr(take(table, "/more"))
    table.close()
    state = b"".join(file.read_bytes() for file in (tmp_path / "gateway").iterdir())
    assert all(token[:52].encode() not in state for token in tokens)
    assert digest_of(tokens[0]) in state
    assert (tmp_path / "gateway" / "state.db").stat().st_mode & 0o077 == 0


def test_only_its_owner_reads_the_state_and_the_files_beside_it(open_table: OpenTable, tmp_path: Path) -> None:
    folder = tmp_path / "gateway"

    def modes() -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}

    take(open_table(), "/a")
    assert modes() == dict.fromkeys(("state.db", "state.db-shm", "state.db-wal", "state.db.lock"), 0o600)


def test_a_state_left_open_to_others_is_closed(open_table: OpenTable, tmp_path: Path) -> None:
    first = open_table()
    take(first, "/a")
    folder = tmp_path / "gateway"
    left = {path: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".lock")}
    first.close()
    for path, content in left.items():  # as after a crash: closing would have folded them into the file
        path.write_bytes(content)
        path.chmod(0o644)
    assert len(open_table().listed()) == 1
    assert {path.stat().st_mode & 0o777 for path in left} == {0o600}


@pytest.mark.parametrize(
    ("boot", "monotonic", "wall_s", "left"),
    [
        ("boot-1", 10, -1000, 90),  # the wall clock was set back: the monotonic one still counts
        ("boot-1", 10, 60, 40),  # set forward: never more than it says
        ("boot-2", -500, 30, 70),  # a reboot: only the wall clock counts
        ("boot-2", -500, -5000, 100),  # a reboot with a wrong wall clock: never more than the maximum
    ],
)
def test_no_restart_gives_a_lease_more_time(
    open_table: OpenTable, clock: ManualClock, boot: str, monotonic: int, wall_s: int, left: int
) -> None:
    table = open_table()
    take(table, "/a")
    table.close()
    clock.boot = boot
    clock.monotonic += monotonic * 10**9
    clock.wall += wall_s * 1000
    assert busy(open_table(), "/a") == left


def test_the_state_has_one_gateway_at_a_time(open_table: OpenTable) -> None:
    table = open_table()
    with refused(ConfigError) as caught:
        open_table()
    assert f"is in use by process {os.getpid()}: stop that gateway" in str(caught.value)
    table.close()
    open_table()


def test_a_foreign_or_broken_state_file_is_refused_and_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    broken, foreign = tmp_path / "broken.db", tmp_path / "foreign.db"
    broken.write_bytes(b"no database at all" * 100)
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE theirs (a)")
    connection.commit()
    connection.close()
    for file in (broken, foreign):
        before = file.read_bytes()
        with refused(ConfigError):
            LeaseTable(file, clock=clock, max_lease_time_s=1)
        assert file.read_bytes()[-100:] == before[-100:]


def test_renewal_counts_from_now_and_never_beyond_the_maximum(table: LeaseTable, clock: ManualClock) -> None:
    digest = digest_of(take(table, "/a").token)
    clock.advance(60)
    table.renew(digest, any_key, None).result()
    assert busy(table, "/a") == 100
    table.renew(digest, any_key, 1e6).result()
    assert busy(table, "/a") == 100
    table.renew(digest, any_key, 5).result()
    assert busy(table, "/a") == 5
    clock.advance(5)
    with refused(Refused, reason="invalid lease"):
        table.renew(digest, any_key, None).result()


def test_a_disabled_repository_gives_no_lease_also_after_a_restart(open_table: OpenTable) -> None:
    table = open_table()
    table.enable(REPOSITORY, False).result()
    table.close()
    table = open_table()
    assert table.disabled() == {REPOSITORY}
    with refused(Refused, reason="repo_disabled"):
        table.acquire(LeasePath(REPOSITORY, "/a"), key_id="k", hostname="h", version=3).result()
    take(table, "/a", "other.example.org")
    table.enable(REPOSITORY, True).result()
    take(table, "/a")


def fence(table: LeaseTable, *leases: Granted) -> dict[int, LeaseGone]:
    return table.begin_switch([(digest_of(lease.token), lease.row.epoch) for lease in leases]).result()


def test_the_fence_of_a_group_names_the_leases_that_are_gone(table: LeaseTable, clock: ManualClock) -> None:
    early = take(table, "/a")
    clock.advance(50)
    late, dropped = take(table, "/b"), take(table, "/c")
    table.drop(digest_of(dropped.token), any_key).result()
    clock.advance(50)
    gone = fence(table, late, early, dropped)
    assert {type(error) for error in gone.values()} == {LeaseGone}
    assert {place: str(error) for place, error in gone.items()} == {
        1: "the lease expired during the commit", 2: "the lease was dropped during the commit",
    }  # fmt: skip
    clock.advance(50)
    take(table, "/b")
    assert fence(table, late), "its path is another's by now"


def test_the_fence_knows_a_lease_by_its_number_which_is_never_used_again(open_table: OpenTable) -> None:
    table = open_table()
    first = take(table, "/a")
    table.drop(digest_of(first.token), any_key).result()
    table.close()
    table = open_table()
    second = take(table, "/a")
    assert second.row.epoch > first.row.epoch
    assert table.begin_switch([(digest_of(second.token), first.row.epoch)]).result()


def test_while_a_commit_switches_its_path_stays_blocked_even_past_expiry(table: LeaseTable, clock: ManualClock) -> None:
    held = take(table, "/a")
    digest = digest_of(held.token)
    assert fence(table, held) == {}
    clock.advance(1000)
    assert busy(table, "/a") < 1
    take(table, "/b")
    table.settle([Spent(digest, held.row, (OLD, NEW), 7)]).result()
    take(table, "/a")


def test_a_lease_dropped_while_it_switches_ends_with_its_commit(table: LeaseTable) -> None:
    held = take(table, "/a")
    digest = digest_of(held.token)
    assert fence(table, held) == {}
    table.drop(digest, any_key).result()
    assert busy(table, "/a") > 0
    assert "dropped" in str(fence(table, held)[0])
    table.settle([], [held.row.epoch]).result()
    take(table, "/a")


def test_a_lease_dropped_while_it_switches_stays_dropped_if_the_gateway_dies_then(open_table: OpenTable) -> None:
    table = open_table()
    held = take(table, "/a")
    assert fence(table, held) == {}
    table.drop(digest_of(held.token), any_key).result()
    assert table.listed() == []
    table.close()  # without settle: as after kill -9
    table = open_table()
    assert table.valid(digest_of(held.token)) is None
    take(table, "/a")


def test_an_unwritten_outcome_blocks_no_longer_than_the_lease(
    table: LeaseTable, clock: ManualClock, tmp_path: Path
) -> None:
    spent, failed = take(table, "/a"), take(table, "/b")
    assert fence(table, spent) == fence(table, failed) == {}
    table._writer._connection.execute("PRAGMA busy_timeout = 0")
    backup = sqlite3.connect(tmp_path / "gateway" / "state.db", isolation_level=None)
    backup.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateError):
        table.settle([Spent(digest_of(spent.token), spent.row, (OLD, NEW), 7)], [failed.row.epoch]).result()
    backup.close()
    assert busy(table, "/a") == busy(table, "/b") == 100
    assert len(table.drop_below(REPOSITORY, "/b").result()) == 1
    take(table, "/b")
    clock.advance(100)
    take(table, "/a")


def test_a_failed_commit_leaves_the_lease_as_it_was(table: LeaseTable) -> None:
    held = take(table, "/a")
    digest = digest_of(held.token)
    assert fence(table, held) == {}
    table.settle([], [held.row.epoch]).result()
    assert table.valid(digest) == held.row
    assert fence(table, held) == {}


def test_a_finished_commit_is_remembered_for_one_lease_time(open_table: OpenTable, clock: ManualClock) -> None:
    table = open_table()
    held = take(table, "/a")
    digest = digest_of(held.token)
    table.settle([Spent(digest, held.row, (OLD, NEW), 7)]).result()
    table.close()
    table = open_table()
    finished = table.finished(digest)
    assert finished is not None
    assert (finished.revision, finished.made_from(OLD, NEW), finished.made_from(NEW, OLD)) == (7, True, False)
    clock.advance(100)
    assert table.finished(digest) is None


def test_one_failing_operation_spoils_no_other_of_its_transaction(table: LeaseTable) -> None:
    futures = [
        table.acquire(LeasePath(REPOSITORY, f"/{number % 5}"), key_id="k", hostname="h", version=3)
        for number in range(50)
    ]
    drops = [table.drop(b"unknown", any_key) for _ in range(5)]
    outcomes = [future.result() for future in futures]
    assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 5
    for drop in drops:
        with pytest.raises(Refused):
            drop.result()
    assert len(table.listed()) == 5


def test_a_caller_that_gives_up_takes_no_lease_and_stops_no_other(table: LeaseTable) -> None:
    begun, gate = threading.Event(), threading.Event()
    running = table._writer.submit(lambda _: (begun.set(), gate.wait(20)))
    assert begun.wait(20)
    given_up = table.acquire(LeasePath(REPOSITORY, "/a"), key_id="key1", hostname="h", version=2)
    assert given_up.cancel()
    assert not running.cancel(), "what has begun is finished"
    gate.set()
    assert take(table, "/a").row.path == "/a"
    assert running.result(20)


def test_ending_all_below_a_path_goes_by_component(table: LeaseTable) -> None:
    for path in ("/a/b", "/a/c/d", "/ab", "/b"):
        take(table, path)
    assert len(table.drop_below(REPOSITORY, "/a").result()) == 2
    assert [row.path for row in table.listed()] == ["/ab", "/b"]
    table.drop_below(REPOSITORY, "").result()
    assert table.listed() == []


class LeaseTableAgainstModel(RuleBasedStateMachine):
    """The queries on SQLite decide exactly as ``overlap`` on a plain dictionary does."""

    names = st.sampled_from(["a", "A", "b", "ab", "a_", "a%", "a-", "a.b", "0", "é", "z"])
    paths = st.lists(names, max_size=3).map(lambda parts: "".join(f"/{part}" for part in parts))

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.table = self.open()
        self.model: dict[str, tuple[str, int]] = {}

    def open(self) -> LeaseTable:
        return LeaseTable(Path(self.folder.name) / "state.db", clock=self.clock, max_lease_time_s=100)

    def held(self) -> dict[str, tuple[str, int]]:
        return {token: lease for token, lease in self.model.items() if lease[1] > self.clock.monotonic}

    @rule(path=paths)
    def acquire(self, path: str) -> None:
        outcome = self.table.acquire(LeasePath(REPOSITORY, path), key_id="k", hostname="h", version=3).result()
        in_the_way = [deadline for other, deadline in self.held().values() if overlap(path, other)]
        if in_the_way:
            assert outcome == Busy(max(in_the_way) - self.clock.monotonic)
        else:
            assert isinstance(outcome, Granted)
            self.model[outcome.token] = (path, self.clock.monotonic + 100 * 10**9)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.held():
            token = data.draw(st.sampled_from(list(self.held())))  # by age: tokens are drawn by chance
            self.table.drop(digest_of(token), any_key).result()
            del self.model[token]

    @rule(seconds=st.integers(min_value=1, max_value=60))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.table.close()
        self.table = self.open()

    @invariant()
    def the_same_leases_are_listed(self) -> None:
        assert [row.path for row in self.table.listed()] == sorted(path for path, _ in self.held().values())

    def teardown(self) -> None:
        self.table.close()
        self.folder.cleanup()


LeaseTableAgainstModel.TestCase.settings = settings(
    max_examples=20, stateful_step_count=25, suppress_health_check=list(HealthCheck)
)
test_lease_table_against_model = LeaseTableAgainstModel.TestCase


def test_the_same_request_again_gets_the_same_lease_while_it_lasts(open_table: OpenTable, clock: ManualClock) -> None:
    def ask(request: bytes, path: str = "/a") -> Granted | Busy:
        token = partial(token_of, "secret", request)
        place = LeasePath(REPOSITORY, path)
        return table.acquire(place, key_id="k", hostname="h", version=3, token=token).result()

    table = open_table()
    first = ask(b"1")
    clock.advance(30)
    table.close()
    table = open_table()
    again = ask(b"1")
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert (again.token, again.row.epoch, again.left_s) == (first.token, first.row.epoch, 70.0)
    assert len(table.listed()) == 1
    assert isinstance(ask(b"2"), Busy)
    assert isinstance(ask(b"1", "/a/b"), Busy), "the same number for another path"
    assert fence(table, again) == {}
    table.drop(digest_of(first.token), any_key).result()
    assert isinstance(ask(b"1"), Busy), "dropped while its commit switches"
    table.settle([], [first.row.epoch]).result()
    fresh = ask(b"1")
    assert isinstance(fresh, Granted)
    assert fresh.token != first.token


# -- steps of the wall clock, numbers and limits


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_step_is_logged_and_lengthens_no_lease_not_even_over_a_reboot(
    open_table: OpenTable, clock: ManualClock, step_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = open_table()
    lease = take(table, "/a")
    clock.advance(10)
    assert table.notice_clock().result() is False
    clock.wall += step_s * 1000
    with caplog.at_level(logging.WARNING):
        assert table.notice_clock().result() is True
        assert table.notice_clock().result() is False
    assert [record.fields["step_s"] for record in caplog.records] == [step_s]  # type: ignore[attr-defined]
    row = table.valid(digest_of(lease.token))
    assert row is not None
    assert row.expires_ms == clock.wall + 90_000
    table.close()
    clock.boot, clock.monotonic = "boot-2", 5 * 10**9
    clock.wall += 1000
    table = open_table()
    row = table.valid(digest_of(lease.token))
    assert row is not None
    assert row.deadline_ns == clock.monotonic + 89 * 10**9


def test_a_clock_that_is_behind_what_was_written_gives_no_time_away(open_table: OpenTable, clock: ManualClock) -> None:
    table = open_table()
    take(table, "/early")
    clock.advance(30)
    lease = take(table, "/late")
    table.close()
    clock.boot, clock.monotonic = "boot-2", 0
    clock.wall -= 20_000
    table = open_table()
    left = {row.path: row.deadline_ns // 10**9 for row in table.listed()}
    assert left == {"/early": 70, "/late": 100}
    assert table.valid(digest_of(lease.token))


def test_a_gateway_without_the_old_state_gives_out_higher_numbers(clock: ManualClock, tmp_path: Path) -> None:
    epochs = []
    for name in ("one", "two"):
        table = LeaseTable(tmp_path / name / "state.db", clock=clock, max_lease_time_s=100)
        epochs += [take(table, f"/{number}").row.epoch for number in range(3)]
        table.close()
        clock.advance(1)
    assert epochs == sorted(set(epochs))


def test_a_key_holds_no_more_leases_than_it_may(open_table: OpenTable) -> None:
    table = open_table()
    for number in range(3):
        take(table, f"/{number}", most=3)
    with refused(Refused, reason="too many leases"):
        take(table, "/more", most=3)


def test_the_time_that_leases_are_held_is_known(open_table: OpenTable, clock: ManualClock) -> None:
    table = open_table()
    assert table.mean_held_s(REPOSITORY) is None
    for seconds in (10, 20):
        lease = take(table, "/a")
        clock.advance(seconds)
        table.drop(digest_of(lease.token), lambda _: True).result()
    assert table.mean_held_s(REPOSITORY) == 12.0
    take(table, "/a/b")
    assert table.remaining_ns(LeasePath(REPOSITORY, "/a")) == 100 * 10**9
    assert table.remaining_ns(LeasePath(REPOSITORY, "/b")) == 0
