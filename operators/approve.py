"""Ask people, and wait for their answer where it holds no worker, no slot of a pool and no lease.

The waiting is Airflow's own, in the state `awaiting_input`. Each question of a run has a mapped task of its own:
Airflow keeps what a task once asked even if the task is cleared, so that another question needs another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context, Param
from airflow.sdk.exceptions import AirflowSkipException

from hooks.task import PLAN, RetryByKind, run_name, why_no_plan
from include.nightlies.steps.values import Night
from operators.base import NightshiftOperator, attempt_of, batches_of, clock, log_of
from operators.night import INHERITED

if TYPE_CHECKING:
    from include.nightlies.steps.approve import ApprovalRequest
    from include.site.site import Site

APPROVE, REJECT = "Approve", "Reject"
LONGEST = timedelta(hours=12)
"""Limit of `approval.deadline_minutes`."""


class AskApprovalOperator(NightshiftOperator):
    """Records what there is to approve of what the run prepared; one question for all of it.

    Hands on a list for `AwaitApprovalOperator`, which is mapped over it: as many as the run has asked so far, of which
    the last one is alive. Skipped if there is nothing to go on with.

    Args:
        batches: All batches of the plan, as its task returned them; what a partial build inherits is read beside them.
        night: What `BuildSensor` returned; earlier passes of that night may have asked already. None: no night.
        **kwargs: Those of every operator.
    """

    template_fields = ("batches", "night")
    ui_color = "#ffedd5"

    def __init__(self, *, batches: Any, night: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batches = batches
        self.night = night

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.nightlies.steps.approve import ask_run

        if self.batches is None:
            raise AirflowSkipException(f"there is nothing to ask about: {why_no_plan(context)}")
        earlier: Sequence[str] = Night.from_json(self.night).earlier if self.night else ()
        # not by its template: a plan that failed has left none, and this task runs in any case
        inherited = context["ti"].xcom_pull(task_ids=PLAN, key=INHERITED)
        batches = [*batches_of(self.batches), *batches_of(inherited or None)]
        site = self.site()
        asked = ask_run(site, attempt_of(context), batches, earlier=earlier)
        self.log.info("%s", asked.why)
        return questions_to_map(site, run_name(context), asked)


class AwaitApprovalOperator(NightshiftOperator, HITLOperator):
    """Waits for the answer to one question, records it, and is skipped if it is not a yes, with all that follows.

    Its subject and its list are in the ledger, where `AskApprovalOperator` put them.

    Args:
        question: One element of the list that `AskApprovalOperator` returned.
        **kwargs: Those of every operator.
    """

    template_fields = ("question",)
    ui_color = "#ffedd5"

    def __init__(self, *, question: Any, **kwargs: Any) -> None:
        # what the DAG's form asks is no part of the answer
        kwargs["params"] = {
            "comment": Param(
                None,
                title="Comment",
                type=["null", "string"],
                maxLength=1000,
                description="Optional: why. It is kept with the answer.",
            )
        }
        super().__init__(
            subject="Approve?", options=[APPROVE, REJECT], response_timeout=LONGEST, **kwargs
        )  # fmt: skip
        self.question = question

    def execute(self, context: Context) -> Any:
        from include.nightlies.steps.approve import open_question, settings_of, tell_asked

        if not self.question["open"]:
            self.log.info("%s", self.question["why"])
            return None
        site = self.site()
        asked = open_question(site, attempt_of(context), self.question["id"])
        # a page of the repository itself there is not
        self.subject, self.body = asked.subject, f"{asked.body}\n\n[Run and its logs]({log_of(asked.run_id)})"
        self.response_timeout = asked.deadline - datetime.now(UTC)
        approvers = settings_of(site, asked.repository).approvers
        self.assigned_users = [{"id": approver, "name": approver} for approver in approvers] or None
        self.log.info("%s; digest %s", asked.outcome, asked.digest)
        tell_asked(site, asked, url=self._url(context), now=clock())
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Airflow hands over the answer, or reports that there was none by the deadline."""
        from include.nightlies.rules.approval import Answer
        from include.nightlies.steps.approve import settle_question, tell_refused

        answer, by, comment = Answer.EXPIRED, None, ""
        if "error" not in event:
            chosen = list(event["chosen_options"])
            self.validate_chosen_options(chosen)
            answer = Answer.APPROVED if chosen == [APPROVE] else Answer.REJECTED
            by, comment = _named(event["responded_by_user"]), str((event["params_input"] or {}).get("comment") or "")
        elif event["error_type"] != "timeout":
            self.process_trigger_event_error(event)
        site = self.site()
        settled = settle_question(
            site.ledger, attempt_of(context), self.question["id"], answer, by=by, comment=comment
        )  # fmt: skip
        if answer is not Answer.APPROVED:
            tell_refused(site, settled, url=self._url(context), now=clock())
            raise AirflowSkipException(settled.outcome)
        return {"digest": settled.digest, "answer": settled.answer.value, "by": settled.answered_by}

    def _url(self, context: Context) -> str | None:
        try:
            return str(self.generate_link_to_ui(task_instance=context["ti"]))
        except ValueError:  # Airflow does not know its own address
            return None


def approve_each(questions: Any) -> Any:
    """The mapped task that waits for the answers to the questions of a run."""
    return AwaitApprovalOperator.partial(
        task_id="approve",
        task_display_name="Wait for approval",
        map_index_template="question {{ task.question['number'] }}",
        retry_policy=RetryByKind(),
        doc_md="Waits for an answer, at most until the deadline; holds no slot, no lease and no worker.",
    ).expand(question=questions)


def questions_to_map(
    site: Site, run: str, asked: ApprovalRequest, *, repository: str | None = None
) -> list[dict[str, Any]]:
    """Return an element for each question of the run so far; only the one that was asked just now is open.

    Args:
        site: The site, for its ledger.
        run: The run's name in the ledger (`hooks.task.run_name`).
        asked: What asking came to.
        repository: Only the questions about this repository, in a run that asks about several; None: all.

    Returns:
        Mappings with `id`, `number`, `open` and `why`, for `AwaitApprovalOperator` to be mapped over.

    Raises:
        AirflowSkipException: There is nothing to go on with.
    """
    from include.nightlies.records import questions

    if not asked.go:
        raise AirflowSkipException(asked.why)
    alive = asked.question.id if asked.question else None
    answered = [
        {
            "id": question.id,
            "number": question.number,
            "open": question.id == alive,
            "why": asked.why if question.id == alive else question.outcome,
        }
        for question in questions.of_run(site.ledger, run)
        if repository in (None, question.repository)
    ]
    return answered or [{"id": None, "number": 0, "open": False, "why": asked.why}]


def _named(user: Any) -> str:
    if user is None:
        return "unknown user"
    given = user if isinstance(user, dict) else {"id": getattr(user, "id", ""), "name": getattr(user, "name", "")}
    return str(given["name"]) if given["name"] == given["id"] else f"{given['name']} ({given['id']})"
