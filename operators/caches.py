"""Operators for the shared caches of a site, in our DAGs and in others'. Each runs where the cache is mounted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from include.settings.load import load
from operators.base import NightshiftOperator

if TYPE_CHECKING:
    from include.aliencache.warm import WarmProgress

__all__ = ["CacheTrimOperator", "CacheVerifyOperator", "CacheWarmOperator"]

PROGRESS_EVERY_S = 30.0
NIGHT_HOUR = 2
"""The hour, in UTC, of the run of `cache_care` that verifies."""


class CacheOperator(NightshiftOperator):
    """Base of operators that work in one shared cache. By default a task goes into the queue of its cache.

    Args:
        cache: Its name in the site configuration. Skipped if the run's parameter `caches` names others only.
        **kwargs: Those of every operator.
    """

    template_fields: Sequence[str] = ("cache",)
    ui_color = "#e0f2fe"

    def __init__(self, *, cache: str, **kwargs: Any) -> None:
        settings = load().caches.get(cache)
        kwargs.setdefault("queue", settings.queue if settings else "default")
        super().__init__(**kwargs)
        self.cache = cache
        self._told = 0.0

    def require_chosen(self, context: Context) -> None:
        """Skip a cache that the run's parameter `caches` leaves out; empty means all of them."""
        chosen = context["params"].get("caches")
        if chosen and self.cache not in chosen:
            raise AirflowSkipException(f"{self.cache} is not among the caches of this run")

    def tell(self, text: str, *values: object) -> None:
        """Log progress now and then."""
        if time.monotonic() - self._told >= PROGRESS_EVERY_S:
            self._told = time.monotonic()
            self.log.info(text, *values)


class CacheWarmOperator(CacheOperator):
    """Fetches what jobs will read into a cache, before they start. A second try goes on where the first ended.

    Returns the report of the warm: `revision`, `objects`, `bytes`, `fetched`, `bytes_fetched`, `present`, `breadcrumb`,
    `seconds`, and others.

    Args:
        cache: The cache's name in the site configuration.
        repository: One of its repositories; None: the first.
        paths: Absolute paths whose files are fetched, `/` for all; empty: those of the setting `warm`.
        tag: The revision of this tag; None: the newest.
        catalogs_only: Fetch only catalogs, so that all folders are listed fast.
        workers: Objects that are fetched at once.
        dry_run: Report what would be fetched; change nothing.
        **kwargs: Those of every operator.

    Raises:
        CacheError: The cache or its origins cannot be used, or nothing is at the paths.
    """

    template_fields = ("cache", "repository", "paths", "tag", "dry_run")
    template_fields_renderers: ClassVar[dict[str, str]] = {"paths": "json"}

    def __init__(
        self,
        *,
        cache: str,
        repository: str | None = None,
        paths: str | Sequence[str] = (),
        tag: str | None = None,
        catalogs_only: bool = False,
        workers: int = 8,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(cache=cache, **kwargs)
        self.repository = repository
        self.paths = paths
        self.tag = tag
        self.catalogs_only = catalogs_only
        self.workers = workers
        # Airflow's own method of this name renders templates only
        self.dry_run = dry_run  # type: ignore[method-assign,assignment]

    def execute(self, context: Context) -> dict[str, Any]:
        from include.aliencache.contents import Wanted
        from include.aliencache.warm import WarmOptions
        from include.site.caching import warm_cache

        self.require_chosen(context)
        site = self.site()
        settings = site.settings.cache(self.cache)
        repository = self.repository or settings.repositories[0]
        if repository not in settings.repositories:
            raise AirflowSkipException(f"{self.cache} is no cache of {repository}")
        paths = [self.paths] if isinstance(self.paths, str) and self.paths else [*self.paths]
        if not (paths or self.catalogs_only or settings.warm):
            raise AirflowSkipException(f"{self.cache}: no paths are given, and its settings have none (`warm:`)")
        choice = Wanted(paths or settings.warm, catalogs_only=self.catalogs_only)
        options = WarmOptions(choice, self.tag or None, self.workers, dry_run=_is_true(self.dry_run))

        def progress(done: WarmProgress) -> None:
            share = done.bytes / done.bytes_total if done.bytes_total else 1.0
            self.tell("%d of %d objects, %.1f %% of %.3f GB", done.objects, done.objects_total, 100 * share,
                      done.bytes_total / 1e9)  # fmt: skip

        report = warm_cache(site, self.cache, repository, options, progress=progress)
        self.log.info(
            "%s has revision %d of %s: %d objects of %.3f GB, %d fetched (%.3f GB) in %.1f s", self.cache,
            report.revision, repository, report.objects, report.bytes / 1e9, report.fetched,
            report.bytes_fetched / 1e9, report.seconds,
        )  # fmt: skip
        return report.to_json()


class CacheTrimOperator(CacheOperator):
    """Trims a cache to its second marks where one of the first is passed; else it is skipped, with the figures.

    Returns the report of the trim: `removed`, `bytes_removed`, `reasons`, `free_before`, `free_after`, and others.
    Fails when a mark is still passed afterwards.

    Args:
        cache: The cache's name in the site configuration.
        dry_run: Report what would go; change nothing.
        **kwargs: Those of every operator.

    Raises:
        CacheError: The cache cannot be trimmed, or not to its marks.
    """

    template_fields = ("cache", "dry_run")
    ui_color = "#fee2e2"

    def __init__(self, *, cache: str, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(cache=cache, **kwargs)
        self.dry_run = dry_run  # type: ignore[method-assign,assignment]

    def execute(self, context: Context) -> dict[str, Any]:
        from include.aliencache.errors import STILL_ABOVE
        from include.site.caching import look_at_cache, trim_cache

        self.require_chosen(context)
        site = self.site()
        look = look_at_cache(site, self.cache)
        if not look.above:
            raise AirflowSkipException(
                f"{self.cache}: no mark is passed; {look.objects} objects of {look.bytes / 1e9:.3f} GB, "
                f"{look.bytes_free / 1e9:.3f} GB free"
            )
        dry_run = _is_true(self.dry_run)
        report = trim_cache(
            site, self.cache, dry_run=dry_run, progress=lambda step, done, _: self.tell("%d %s", done, step)
        )
        for reason, count in report.reasons.items():
            self.log.info("%d objects: %s", count, reason)
        for note in report.notes:
            self.log.warning("%s", note)
        if report.still_above and not dry_run:
            what = f"a mark is still passed after {report.removed} objects went; free: {report.free_after / 1e9:.3f} GB"
            raise STILL_ABOVE(self.cache, what)
        look_at_cache(site, self.cache)
        return report.to_json()


class CacheVerifyOperator(CacheOperator):
    """Finds objects that are not what their names say, and takes them out of the clients' sight.

    Returns the report: `objects`, `good`, `not_judged`, `damaged_count`, and others. Fails when some were damaged.

    Args:
        cache: The cache's name in the site configuration.
        level: `size`, `name`, `sum` or `fetch`: how far; each has those before it.
        share: Only one folder in so many, another one each day; None: as the settings say; 1: all.
        delete: Delete damaged objects instead of keeping them in `quarantaine`.
        nightly: Skipped but in the run of 2 o'clock (UTC), unless the run's parameter `verify` says otherwise.
        dry_run: Only report.
        **kwargs: Those of every operator.

    Raises:
        CacheError: The cache cannot be read, or has damaged objects.
    """

    template_fields = ("cache", "level", "dry_run")

    def __init__(
        self,
        *,
        cache: str,
        level: str = "name",
        share: int | None = None,
        delete: bool = False,
        nightly: bool = False,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(cache=cache, **kwargs)
        self.nightly = nightly
        self.level = level
        self.share = share
        self.delete = delete
        self.dry_run = dry_run  # type: ignore[method-assign,assignment]

    def execute(self, context: Context) -> dict[str, Any]:
        from include.aliencache.errors import OBJECTS_DAMAGED
        from include.aliencache.verify import Level, VerifyOptions
        from include.site.caching import verify_cache

        self.require_chosen(context)
        run_after, asked = context["dag_run"].run_after, context["params"].get("verify")
        if self.nightly and not (run_after.hour == NIGHT_HOUR if asked is None else asked):
            raise AirflowSkipException(f"it is verified in the run of {NIGHT_HOUR} o'clock UTC")
        site = self.site()
        share = self.share or site.settings.cache(self.cache).share
        day = run_after.toordinal()
        options = VerifyOptions(Level[self.level.upper()], share, day % share, self.delete, _is_true(self.dry_run))
        report = verify_cache(site, self.cache, options, progress=lambda step, done, _: self.tell("%d %s", done, step))
        for note in report.notes:
            self.log.warning("%s", note)
        self.log.info(
            "%d objects: %d good, %d damaged, %d not judged", report.objects, report.good, report.damaged_count,
            report.not_judged,
        )  # fmt: skip
        if report.damaged_count:
            shown = ", ".join(report.damaged[:5])
            raise OBJECTS_DAMAGED(
                self.cache, f"{report.damaged_count} of {report.objects} objects are damaged: {shown}"
            )
        return report.to_json()


class ReportCachesOperator(NightshiftOperator):
    """Puts together what became of each cache in a run: the figures of its warm and of its verification.

    Args:
        caches: The names of all caches.
        **kwargs: Those of every operator.

    Raises:
        CacheError: A cache that the run was to warm has no report of it.
    """

    ui_color = "#e6f1f2"

    def __init__(self, *, caches: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.caches = caches

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from include.aliencache.errors import NOT_WARMED

        ti, params = context["ti"], context["params"]
        reports, missing = [], []
        for cache in params.get("caches") or self.caches:
            warm = ti.xcom_pull(task_ids=f"{cache}.warm", key="return_value")
            verified = ti.xcom_pull(task_ids=f"{cache}.verify", key="return_value")
            mine = params["repository"] in load().cache(cache).repositories
            if mine and (warm is None or verified is None):
                missing.append(cache)
            if warm is not None:
                self.log.info("%s: %s", cache, warm)
                reports.append({"cache": cache, "warm": warm, "verify": verified})
        if missing and not params.get("dry_run"):
            raise NOT_WARMED(", ".join(missing), "not warmed and verified; see their tasks")
        return reports


def _is_true(value: object) -> bool:
    return value is True or str(value).lower() == "true"
