"""Look after repositories: each operator is mapped over them, so that each fails alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from operators.base import NightshiftOperator, attempt_of, former_names
from operators.thaw import WritingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class _CareOperator(NightshiftOperator):
    """:param repository: whose turn it is; skipped if the run's parameter `repositories` names others only."""

    template_fields = ("repository",)

    def __init__(self, *, repository: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repository = repository

    def require_wanted(self, context: Context) -> None:
        wanted = context["params"].get("repositories")
        if wanted and self.repository not in wanted:
            raise AirflowSkipException(f"{self.repository} is not among the repositories of this run")


class CheckWhitelistOperator(_CareOperator):
    """Fails when the whitelist ends within the days that the repository's settings say. It signs nothing."""

    ui_color = "#e0e7ff"

    def execute(self, context: Context) -> float:
        from include.nightlies.steps.care import look_at_whitelist

        self.require_wanted(context)
        return round(look_at_whitelist(self.site(), attempt_of(context), self.repository), 2)


class PruneTagsOperator(WritingOperator, _CareOperator):
    """Takes tags away by the repository's rule, or says which would go; skipped where there is no rule.

    Waits in the triggerer while the repository is frozen.

    The run's parameter `dry_run` may say otherwise than the rule. Returns the names.
    """

    ui_color = "#fee2e2"

    def execute(self, context: Context) -> list[str]:
        from include.nightlies.steps.care import prune_tags

        self.require_wanted(context)
        attempt, dry_run = attempt_of(context), context["params"].get("dry_run")
        site = self.site()
        pruned = self.unless_frozen(site, lambda: prune_tags(site, attempt, self.repository, dry_run=dry_run))
        if pruned is None:
            raise AirflowSkipException(f"{self.repository} has no rule for its tags: care.tags in the configuration")
        verb = "removed" if pruned.done else "dry run, would be removed"
        self.log.info("%s: %s", verb, ", ".join(pruned.names) or "none")
        return list(pruned.names)


class RemoveUnfinishedWritesOperator(_CareOperator):
    """Removes files of killed writers that are older than a day, where the store is a folder.

    The run's parameter `dry_run` only names them. Returns how many there were.
    """

    ui_color = "#fef9c3"

    def execute(self, context: Context) -> int:
        from include.nightlies.steps.care import remove_unfinished

        self.require_wanted(context)
        dry_run = bool(context["params"].get("dry_run"))
        return len(remove_unfinished(self.site(), attempt_of(context), self.repository, dry_run=dry_run))


class CheckRepositoryOperator(_CareOperator):
    """Checks manifest, tags, reflog and all catalogs; damage is noted in the ledger and fails the task."""

    ui_color = "#f3e8ff"

    def execute(self, context: Context) -> dict[str, Any]:
        from include.nightlies.steps.care import check_quickly

        self.require_wanted(context)
        report = check_quickly(self.site(), attempt_of(context), self.repository)
        return {"revision": report.revision, "catalogs": report.catalogs, "warnings": report.warning_count}


if not TYPE_CHECKING:
    __getattr__ = former_names(
        __name__,
        {
            "WhitelistLookOperator": "CheckWhitelistOperator",
            "TagPruneOperator": "PruneTagsOperator",
            "UnfinishedRemoveOperator": "RemoveUnfinishedWritesOperator",
            "CheckOperator": "CheckRepositoryOperator",
        },
    )
