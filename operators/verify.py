"""Read back what a run published, through the public URL and with the public key only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from operators.base import attempt_of, batches_of
from operators.links import RepositoryLink
from operators.thaw import WritingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class VerifyArtifactsOperator(WritingOperator):
    """First takes away the empty destinations of artifacts that failed, then walks and samples what is published.

    Taking away waits in the triggerer while the repository is frozen; reading does not.

    Args:
        batches: All batches of the run's plan, for the destinations to tidy; what to verify comes from the ledger.
        **kwargs: `deferrable`, and those of every operator.
    """

    template_fields = ("batches",)
    operator_extra_links = (RepositoryLink(),)
    ui_color = "#f3e8ff"

    def __init__(self, *, batches: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batches = batches

    def execute(self, context: Context) -> dict[str, int]:
        from include.nightlies.steps.verify import tidy_run, verify_run

        site = self.site()
        attempt, batches = attempt_of(context, outlast=self.outlasts(site)), batches_of(self.batches)

        def tidy() -> tuple[str, ...]:
            return tidy_run(site, attempt, batches)

        removed = self.outlasting(site, lambda: self.unless_frozen(site, tidy))
        read = self.outlasting(site, lambda: verify_run(site, attempt))
        return {"verified": len(read), "files": sum(tree.files for tree in read), "tidied": len(removed)}
