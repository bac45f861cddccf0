"""Stage-out with an FTS that cannot be relied on, storages that cannot be asked, and components that die, in any order.

Each file is in exactly one state, with a history that the table of moves allows. What counts as done has its copy at
the destination. No source is removed before. Nothing that others wrote is replaced, and no attempt may replace what
no earlier one has begun. FTS writes no destination of a transfer that the ledger has in no job, or in another one. The
census moves nothing. In the end, with everything in order again, every file and every job ends.
"""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from include.stageout.files import FileKind
from tests.faults.stageout.conservation import VERIFIED, check, running, unfinished
from tests.faults.stageout.passes import (
    BESIDE,
    PASSES,
    census,
    close_known_workflow,
    declare_job_dead,
    kill_workflow,
    resubmit_workflow,
)
from tests.faults.stageout.storages import DOMAIN, FOREIGN
from tests.faults.stageout.wildfts import Outcome, Trouble
from tests.faults.stageout.world import LINKS, OWNERS, SERVERS, SITES, SOURCE_LOST, KnownFile, StageoutWorld

SPANS = {
    "moment": timedelta(seconds=20), "minutes": timedelta(minutes=4), "hour": timedelta(hours=1),
    "queue": timedelta(hours=6), "day": timedelta(days=1), "week": timedelta(days=8),
}  # fmt: skip
WORKFLOWS = ("w1", "w2")
MOST_FILES = 40
ROUNDS = 400

FREQUENT = ("submit", "monitor", "report", "register", "clean")
TRIED_AGAIN = (Outcome.TIMEOUT, Outcome.NO_SPACE, Outcome.SOURCE_DOWN, Outcome.MISMATCH, Outcome.FINISHED)
UNCLEAR = (Trouble.LATE, Trouble.LATE, Trouble.LOST_REPLY, Trouble.HTML, Trouble.HALF)
LATER = (0, 20, 200)
"""Seconds that pass while two workers meet: a claim lasts for 180."""

passes = st.sampled_from(list(PASSES))
beside = st.sampled_from(list(BESIDE))
seldom = st.sampled_from([False, False, False, True])
spans = st.sampled_from(["moment", "moment", "minutes", "hour"])
servers = st.sampled_from(SERVERS)
owners = st.sampled_from(OWNERS)
points = st.integers(1, 30)
numbers = st.integers(0, 50)
workflows = st.sampled_from(WORKFLOWS)
LIKELY = [*Outcome, *[Outcome.ACTIVE] * 4, Outcome.WRONG, Outcome.ALTERED, *[Outcome.FINISHED] * 8]
outcomes = st.lists(st.sampled_from(LIKELY), min_size=2, max_size=8)


class StageoutBesideTrouble(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = StageoutWorld()

    def teardown(self) -> None:
        try:
            self.every_file_ends()
        finally:
            self.world.close()

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        check(self.world)

    # -- users

    @initialize(links=st.lists(st.sampled_from(LINKS), min_size=2, max_size=4), declared=st.booleans())
    def begin(self, links: list[tuple[str, str]], declared: bool) -> None:
        for number, link in enumerate(links):
            self.request(
                OWNERS[number % 2], link, 4, WORKFLOWS[number // 2 % 2], ["/a", None][number % 2], FileKind.OUTPUT,
                declared=declared, drawn=[], rounds=0,
            )  # fmt: skip

    @rule(
        owner=owners, link=st.sampled_from(LINKS), count=st.integers(1, 5), workflow=workflows,
        dataset=st.sampled_from([None, "/a", "/a", "/b"]), kind=st.sampled_from([FileKind.OUTPUT, FileKind.LOG]),
        declared=st.booleans(), drawn=outcomes, rounds=st.integers(0, 3),
    )  # fmt: skip
    def request(
        self, owner: str, link: tuple[str, str], count: int, workflow: str, dataset: str | None, kind: FileKind,
        declared: bool, drawn: list[Outcome], rounds: int,
    ) -> None:  # fmt: skip
        if len(self.world.files) < MOST_FILES:
            self.world.request(
                owner, link, count, workflow=workflow, dataset=dataset, kind=kind, declared=declared
            )  # fmt: skip
        self.go_on(rounds, drawn, "moment")

    @rule(owner=owners, workflow=workflows, again=st.booleans())
    def kill(self, owner: str, workflow: str, again: bool) -> None:
        kill_workflow(self.world, owner, workflow)
        if again:
            self.work()
            self.world.pass_time(SPANS["moment"])
            self.work()
            resubmit_workflow(self.world, owner, workflow)
            self.work()

    @rule(owner=owners, workflow=workflows)
    def resubmit(self, owner: str, workflow: str) -> None:
        resubmit_workflow(self.world, owner, workflow)

    @rule(owner=owners, workflow=workflows)
    def close(self, owner: str, workflow: str) -> None:
        close_known_workflow(self.world, owner, workflow)

    # -- components

    @rule(name=passes, worker=st.sampled_from(["one", "two"]))
    def run(self, name: str, worker: str) -> None:
        PASSES[name](self.world, worker)

    @rule(name=passes, at=points)
    def die(self, name: str, at: int) -> None:
        with self.world.perils.of(die_at=at):
            PASSES[name](self.world, "one")

    @rule(name=passes, at=points, others=st.lists(beside, min_size=1, max_size=3), later=st.sampled_from(LATER))
    def run_beside(self, name: str, at: int, others: list[str], later: int) -> None:
        """Between two steps of one worker another one does its passes, perhaps after the claims of the first ended.

        No job is declared dead beside a submitter: it may be about to send that job's request once more.
        """

        def meet() -> None:
            self.world.pass_time(timedelta(seconds=later))
            for other in others:
                if (name, other) != ("submit", "declare_dead"):
                    BESIDE[other](self.world, "two")

        with self.world.perils.of(meet_at=at, meet=meet):
            PASSES[name](self.world, "one")

    @rule(name=passes, beside=st.integers(1, 12), dies=st.integers(1, 12))
    def die_beside(self, name: str, beside: int, dies: int) -> None:
        """Two workers at the same component, of which the first dies later."""
        with self.world.perils.of(meet_at=beside, meet=lambda: PASSES[name](self.world, "two"), die_at=beside + dies):
            PASSES[name](self.world, "one")

    @rule(rounds=st.integers(2, 5), drawn=outcomes, span=spans)
    def go_on(self, rounds: int, drawn: list[Outcome], span: str) -> None:
        """Run every component in turn, as in production, while FTS does its work."""
        for _ in range(rounds):
            self.work()
            for server in SERVERS:
                self.copy(server, drawn)
            self.world.pass_time(SPANS[span])

    @rule(drawn=outcomes, at=points, name=st.sampled_from(FREQUENT), dies=st.booleans(), later=st.sampled_from(LATER))
    def go_on_but(self, drawn: list[Outcome], at: int, name: str, dies: bool, later: int) -> None:
        """The same, but one component dies on its way, or meets another worker at the same component."""
        for server in SERVERS:
            self.copy(server, drawn)
        self.world.pass_time(SPANS["moment"])
        for each in PASSES:
            if each != name:
                PASSES[each](self.world, "one")
            elif dies:
                self.die(name, at)
            else:
                self.run_beside(name, at, [name], later)

    @rule(kind=st.sampled_from(["", "begin"]), at=points, outcome=st.sampled_from(TRIED_AGAIN))
    def fall_asleep(self, kind: str, at: int, outcome: Outcome) -> None:
        """A monitor goes on when others have seen the same files, and submitted them again."""

        def meet() -> None:
            self.world.pass_time(SPANS["minutes"])
            PASSES["monitor"](self.world, "two")
            self.wait("queue")
            for name in ("retry_waiting", "submit"):
                PASSES[name](self.world, "two")

        PASSES["submit"](self.world, "one")
        self.wait("moment")
        for server in SERVERS:
            self.copy(server, [outcome] * 20)
        with self.world.perils.of(meet_at=1 + at % 6 if kind else at, meet=meet, kind=kind):
            PASSES["monitor"](self.world, "one")

    @rule(owner=owners, link=st.sampled_from(LINKS), trouble=st.sampled_from(UNCLEAR), span=spans)
    def submit_unclearly(self, owner: str, link: tuple[str, str], trouble: Trouble, span: str) -> None:
        """The reply to a submission is lost; the next submitter settles it."""
        for server in self.world.servers.values():
            server.troubles, server.troubled = [trouble], "POST"
        self.request(owner, link, 2, "w1", None, FileKind.OUTPUT, declared=True, drawn=[], rounds=0)
        PASSES["submit"](self.world, "one")
        self.world.pass_time(SPANS[span])
        PASSES["submit"](self.world, "two")

    @rule()
    def census(self) -> None:
        """It moves nothing."""
        before = check(self.world)
        census(self.world, "census")
        after = check(self.world)
        assert (after.moves, after.job_moves) == (before.moves, before.job_moves)

    def work(self) -> None:
        for name in PASSES:
            PASSES[name](self.world, "one")

    # -- FTS

    @rule(server=servers, drawn=outcomes)
    def copy(self, server: str, drawn: list[Outcome]) -> None:
        for place, outcome in self.world.servers[server].go_on(drawn):
            self.world.note(outcome.name, lambda file, place=place: file.destination == place)

    @rule(
        server=servers, troubles=st.lists(st.sampled_from(Trouble), min_size=1, max_size=4),
        method=st.sampled_from([None, "POST", "POST", "DELETE"]),
    )  # fmt: skip
    def trouble(self, server: str, troubles: list[Trouble], method: str | None) -> None:
        self.world.servers[server].troubles, self.world.servers[server].troubled = troubles, method

    @rule(server=servers, down=seldom)
    def up_or_down(self, server: str, down: bool) -> None:
        self.world.servers[server].down = down

    @rule(server=servers, number=numbers, everything=st.booleans(), archived=st.booleans())
    def forget(self, server: str, number: int, everything: bool, archived: bool) -> None:
        """It restarts with ids lost, or has moved jobs into its archive."""
        jobs = [*self.world.servers[server].jobs]
        if jobs:
            self.world.forget(server, jobs if everything else [jobs[number % len(jobs)]], archived=archived)

    @rule(
        server=servers,
        site=st.sampled_from([*SITES]),
        how=st.sampled_from(["CANCEL", "WAIT", "WAIT_AS", None, None, None]),
    )
    def ban(self, server: str, site: str, how: str | None) -> None:
        self.world.servers[server].ban(f"davs://{site}.{DOMAIN}", how)
        if how == "CANCEL":
            self.world.note("banned", lambda file: site in (file.source[0], file.destination[0]))

    @rule(number=numbers)
    def declare_dead(self, number: int) -> None:
        declare_job_dead(self.world, number)

    # -- sites and their users

    @rule(site=st.sampled_from([*SITES]), owner=owners)
    def stray(self, site: str, owner: str) -> None:
        self.world.stray(site, owner)

    @rule(site=st.sampled_from([*SITES]), silent=seldom)
    def silence(self, site: str, silent: bool) -> None:
        (self.world.storages.silent.add if silent else self.world.storages.silent.discard)(site)

    @rule(number=numbers, same=st.booleans())
    def write_first(self, number: int, same: bool) -> None:
        """Write to the destination before any attempt, as another user does."""
        tried = self.world.storages.tried | set(self.world.storages.files)
        file = self.nth(number, [file for file in self.world.files.values() if file.destination not in tried])
        if file is not None:
            size, checksum = (file.content.size, file.content.checksum) if same else (7, "adler32:00f00f00")
            self.world.storages.put(*file.destination, size, checksum, FOREIGN)
            file.faults.append(FOREIGN)

    @rule(number=numbers)
    def lose_source(self, number: int) -> None:
        file = self.nth(number, [*self.world.files.values()])
        if file is not None:
            self.world.storages.files.pop(file.source, None)
            file.source_lost = True
            file.faults.append(SOURCE_LOST)

    @rule(number=numbers, altered=st.booleans())
    def lose_copy(self, number: int, altered: bool) -> None:
        """A person removes a verified copy whose source still exists, or writes another file there."""
        account = check(self.world)
        there = [
            file for file in self.world.files.values()
            if account.state(file.id) in VERIFIED and file.source in self.world.storages.files
            and self.world.arrived(file)
        ]  # fmt: skip
        file = self.nth(number, there)
        if file is not None:
            copy = self.world.storages.files.pop(file.destination)
            if altered:
                self.world.pass_time(SPANS["minutes"])
                self.world.storages.put(*file.destination, copy.size, "adler32:00f00f00", FOREIGN)
            file.copy_lost = True
            file.faults.append(FOREIGN)

    @rule(owner=owners, gone=seldom)
    def credential(self, owner: str, gone: bool) -> None:
        (self.world.without_credential.add if gone else self.world.without_credential.discard)(owner)

    @rule(span=st.sampled_from([*SPANS]))
    def wait(self, span: str) -> None:
        self.world.pass_time(SPANS[span])
        if SPANS[span] > timedelta(hours=5):
            self.world.note("waited", lambda _: True)

    def nth(self, number: int, files: list[KnownFile]) -> KnownFile | None:
        return files[number % len(files)] if files else None

    # -- in the end

    def every_file_ends(self) -> None:
        """With everything in order again."""
        world = self.world
        world.storages.silent.clear()
        world.without_credential.clear()
        for server in world.servers.values():
            server.troubles, server.down = [], False
            server.banned.clear()
        for number in range(ROUNDS):
            account = check(world)
            left, jobs = unfinished(account), running(account)
            if not left and not jobs:
                return
            for name in PASSES:
                PASSES[name](world, "one")
            for server in SERVERS:
                self.copy(server, [Outcome.FINISHED] * 100)
            world.pass_time(SPANS["minutes"] if number % 3 else SPANS["hour"])
        told = [f"{world.files[number]} {row.state}: {row.reason}" for number, row in left.items()]
        raise AssertionError(f"after {ROUNDS} rounds without trouble these have not ended: {told}, {jobs}")
