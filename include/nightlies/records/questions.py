"""Ledger records of questions: what was asked in a run, who answered what and when, what the answer binds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, insert, select, update

from include.json_values import JsonValue
from include.ledger.engine import Bind, reading, writing
from include.nightlies.errors import QuestionSettled
from include.nightlies.records.tables import bound as bound_table, changesets, questions
from include.nightlies.rules.approval import Answer, Bound, QuestionKind, WantedApproval

_COMMENT_LENGTH = 4000
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Question(JsonValue):
    """Question of a run. `number`: from 1 on in its run; `turn`: which time it is that the run asks anybody.

    `expires_at`: the last moment at which an answer is of use, `deadline`: until when it is waited for. `answered_by`:
    the user, as Airflow names it.
    """

    id: int
    run_id: str
    number: int
    turn: int
    kind: QuestionKind
    repository: str
    digest: str
    subject: str
    body: str
    asked_at: datetime
    expires_at: datetime
    deadline: datetime
    answer: Answer
    answered_at: datetime | None
    answered_by: str | None
    comment: str

    @property
    def outcome(self) -> str:
        """Return what became of it, in words."""
        comment = f": {self.comment}" if self.comment else ""
        when = f"{self.answered_at:%Y-%m-%d %H:%M} UTC" if self.answered_at else ""
        match self.answer:
            case Answer.OPEN:
                return f"question {self.number} awaits its answer until {self.deadline:%Y-%m-%d %H:%M} UTC"
            case Answer.EXPIRED:
                return f"question {self.number} had no answer by its deadline, {self.deadline:%Y-%m-%d %H:%M} UTC"
            case Answer.REPLACED:
                return f"question {self.number} was asked again before it was answered"
            case _:
                return f"{self.answer.value} by {self.answered_by} at {when}{comment}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Content of a changeset, as far as an approval binds it; `begun`: when it was."""

    source_sha256: str
    root_hash: str
    begun: datetime


def ask(
    bind: Bind, run: str, wanted: WantedApproval, *, now: datetime, deadline: datetime, answered: Question | None = None
) -> Question:
    """Record a question of a run; an open question of the same run about the same repository is replaced.

    `answered`: a question of an earlier pass of the night whose answer is taken over.
    """

    def work(connection: Connection) -> Question:
        of_run = questions.c.run_id == run
        row = connection.execute(
            select(func.max(questions.c.number), func.max(questions.c.turn)).where(of_run)
        ).one()  # fmt: skip
        connection.execute(
            update(questions)
            .where(of_run, questions.c.repository == wanted.repository, questions.c.answer == Answer.OPEN.value)
            .values(answer=Answer.REPLACED.value, answered_at=now)
        )
        values = {
            "run_id": run, "number": (row[0] or 0) + 1, "turn": (row[1] or 0) + 1, "kind": wanted.kind.value,
            "repository": wanted.repository, "digest": wanted.digest, "subject": wanted.subject, "body": wanted.body,
            "asked_at": now, "expires_at": wanted.expires, "deadline": deadline, "answer": Answer.OPEN.value,
            "comment": "",
        }  # fmt: skip
        if answered is not None:
            values |= {
                "answer": answered.answer.value, "answered_at": answered.answered_at,
                "answered_by": answered.answered_by,
                "comment": f"asked in {answered.run_id}; {answered.comment}".rstrip("; ")[:_COMMENT_LENGTH],
            }  # fmt: skip
        key = connection.execute(insert(questions).values(**values)).inserted_primary_key
        found = int(key[0]) if key is not None else 0
        rows = {
            subject.digest: {
                "question": found,
                "digest": subject.digest,
                "name": subject.name,
                "destination": subject.destination,
            }
            for subject in wanted.bound
        }
        connection.execute(insert(bound_table), list(rows.values()))
        return question(connection, found)

    return writing(bind, work)


def ask_again(bind: Bind, question_id: int, *, now: datetime, deadline: datetime) -> Question:
    """Open a question again, whatever was answered. Raises QuestionSettled for one that was replaced."""

    def work(connection: Connection) -> Question:
        found = _locked(connection, question_id)
        if found.answer is Answer.REPLACED:
            raise QuestionSettled(found.number, found.outcome)
        turn = connection.scalar(select(func.max(questions.c.turn)).where(questions.c.run_id == found.run_id)) or 0
        again = found.answer is not Answer.OPEN
        values = {"answer": Answer.OPEN.value, "answered_at": None, "answered_by": None, "comment": ""}
        connection.execute(
            update(questions)
            .where(questions.c.id == question_id)
            .values(asked_at=now, deadline=deadline, turn=turn + 1 if again else found.turn, **values)
        )
        return question(connection, question_id)

    return writing(bind, work)


def settle(
    bind: Bind, question_id: int, answer: Answer, *, now: datetime, by: str | None = None, comment: str = ""
) -> Question:
    """Record what was answered, once. The same answer again changes nothing; raises QuestionSettled for another."""

    def work(connection: Connection) -> Question:
        found = _locked(connection, question_id)
        if found.answer is answer:
            return found
        if found.answer is not Answer.OPEN:
            raise QuestionSettled(found.number, found.outcome)
        connection.execute(
            update(questions)
            .where(questions.c.id == question_id)
            .values(
                answer=answer.value, answered_at=now, answered_by=by[:256] if by else None,
                comment=comment[:_COMMENT_LENGTH],
            )
        )  # fmt: skip
        return question(connection, question_id)

    return writing(bind, work)


def question(bind: Bind, question_id: int) -> Question:
    """The question of that id."""
    with reading(bind) as connection:
        row = connection.execute(select(questions).where(questions.c.id == question_id)).mappings().one()
    return Question.from_json(row)


def of_run(bind: Bind, run: str) -> tuple[Question, ...]:
    """All questions of a run, in their order."""
    query = select(questions).where(questions.c.run_id == run).order_by(questions.c.number)
    with reading(bind) as connection:
        return tuple(Question.from_json(row) for row in connection.execute(query).mappings())


def bound_of(bind: Bind, question_id: int) -> tuple[Bound, ...]:
    """Return what the answer to a question binds."""
    query = select(bound_table).where(bound_table.c.question == question_id).order_by(bound_table.c.name)
    with reading(bind) as connection:
        rows = connection.execute(query).mappings().all()
    return tuple(Bound(row["name"], row["destination"], row["digest"]) for row in rows)


def newest(bind: Bind, runs: Sequence[str], digests: Iterable[str]) -> dict[str, Question]:
    """The last question of these runs about each digest; digests that no question was about are left out."""
    wanted, last = list(digests), dict[str, int]()
    with reading(bind) as connection:
        for at in range(0, len(wanted), _AT_ONCE):
            query = (
                select(bound_table.c.digest, func.max(questions.c.id))
                .join(questions, bound_table.c.question == questions.c.id)
                .where(questions.c.run_id.in_(runs), bound_table.c.digest.in_(wanted[at : at + _AT_ONCE]))
                .group_by(bound_table.c.digest)
            )
            last |= {row[0]: row[1] for row in connection.execute(query)}
        asked = {number: question(connection, number) for number in set(last.values())}
    return {digest: asked[number] for digest, number in last.items()}


def prepared(bind: Bind, digests: Iterable[str]) -> dict[str, Prepared]:
    """Return what these changesets hold, by their digests."""
    wanted, found = list(digests), dict[str, Prepared]()
    columns = (changesets.c.digest, changesets.c.source_sha256, changesets.c.root_hash, changesets.c.created_at)
    with reading(bind) as connection:
        for at in range(0, len(wanted), _AT_ONCE):
            query = select(*columns).where(changesets.c.digest.in_(wanted[at : at + _AT_ONCE]))
            for row in connection.execute(query):
                found[row.digest] = Prepared(row.source_sha256, row.root_hash, row.created_at)
    return found


def _locked(connection: Connection, question_id: int) -> Question:
    query = select(questions).where(questions.c.id == question_id).with_for_update()
    return Question.from_json(connection.execute(query).mappings().one())
