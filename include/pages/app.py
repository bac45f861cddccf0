"""The app: every route behind the login that it is given, no content from elsewhere, no script in a page; rendering."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool

from include.errors import NightshiftError
from include.ledger.errors import LedgerError
from include.monitoring.render import size
from include.pages.asked import SHARE, Answers, AskDag, Asked, BadPageQuery, PageForOperators
from include.pages.benchmarks import docs_of_campaign, report_file
from include.pages.registry import PAGES, Page
from include.quality.results import docs_file
from include.site.site import Site
from include.stageout.rest.questions import StageoutUser
from include.stageout.rest.remembered import RememberedCounts

HERE = Path(__file__).parent
STATIC = HERE / "static"


def page_html(page: Page, values: dict[str, Any]) -> str:
    """The whole page."""
    return _environment().get_template(f"{page.name}.html").render(page=page, **values)


def live_part(page: Page, values: dict[str, Any]) -> str:
    """Only what is replaced while the page is open."""
    template = _environment().get_template(f"{page.name}.html")
    return "".join(template.blocks["live"](template.new_context({"page": page, **values})))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"airflow": "..", "pages": [page for page in PAGES if page.nav], "static": _static_address}
    made.globals |= {"number": number, "size": size}
    made.filters |= {"size": size, "clock": clock, "minute": minute, "span": span, "number": number, "signed": signed}
    # macros as a global: a block that is drawn alone sees no import of its template
    made.globals["parts"] = made.get_template("parts.html").module
    return made


@cache
def _static_address(name: str) -> str:
    """The URL of one of our files; its digest makes the browser take a new one at once."""
    file = STATIC / name
    package = name.partition(".")[0]
    mark = hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.exists() else version(package)
    return f"static/{name}?{mark}"


def clock(instant: datetime | None) -> str:
    """The time of day in UTC."""
    return f"{instant.astimezone(UTC):%H:%M:%S}" if instant else ""


def minute(instant: datetime | None) -> str:
    """Date and time in UTC, to the minute."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M}" if instant else ""


def span(seconds: float | None) -> str:
    """A length of time as people read it; nothing for nothing known."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s" if whole < 600 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return "" if value is None else f"{value:,}".replace(",", " ")


def signed(value: int | None, form: Callable[[int | None], str]) -> str:
    """A difference with its sign; nothing for nothing known, and for no difference."""
    return f"{'+' if value > 0 else MINUS}{form(abs(value))}" if value else ""


MINUS = "\N{MINUS SIGN}"
TYPES = {".css": "text/css", ".js": "text/javascript"}
EVERY_S = 15
"""Seconds between two updates of a page without its own."""
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "private, no-cache"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{styles}; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)


def create_app(login: Callable[..., StageoutUser], site: Callable[[], Site], dags: Callable[..., AskDag]) -> FastAPI:
    """The pages as an app to be mounted.

    Args:
        login: A FastAPI dependency: who asks. It raises 401 for a request without a login.
        site: Gives the deployment; called in a thread for each request.
        dags: A FastAPI dependency: tells of a DAG by its id what the one who asks may know and do.
    """

    def admit(
        request: Request,
        user: StageoutUser = Depends(login),  # noqa: B008 - FastAPI's form
        dag: AskDag = Depends(dags),  # noqa: B008
    ) -> None:
        request.state.user, request.state.dag = user, dag

    app = FastAPI(
        title="Nightshift", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(admit)]
    )  # fmt: skip
    answers = (Answers(), Answers(workers=1, share=SHARE), RememberedCounts())
    for page in PAGES:
        _add(app, page, site, answers)
    app.add_api_route("/static/{name}", _static, methods=["GET"])
    app.add_api_route("/quality/{slot}/{run}/{name}", partial(_data_docs, site), methods=["GET"])
    app.add_api_route("/benchmarks/{campaign}/report", partial(_benchmark_report, site), methods=["GET"])
    app.add_api_route("/benchmarks/{campaign}/data-docs", partial(_benchmark_docs, site), methods=["GET"])
    app.add_exception_handler(NightshiftError, _refused)
    return app


def _add(
    app: FastAPI, page: Page, site: Callable[[], Site], answers: tuple[Answers, Answers, RememberedCounts]
) -> None:
    read = getattr(import_module(f"include.pages.{page.module}"), page.read)

    def values(request: Request) -> dict[str, Any]:
        state, query = request.state, dict(request.query_params)
        asked = Asked(site(), *answers, state.user, datetime.now(UTC), query, state.dag)
        return {"every": EVERY_S, **read(asked)}

    async def whole(request: Request) -> Response:
        content = await run_in_threadpool(values, request)
        return _answer(request, page, await run_in_threadpool(page_html, page, content))

    async def live(request: Request) -> Response:
        content = await run_in_threadpool(values, request)
        return _answer(request, page, await run_in_threadpool(live_part, page, content))

    app.add_api_route(f"/{page.name}", whole, methods=["GET"], name=page.name)
    app.add_api_route(f"/{page.name}/live", live, methods=["GET"], name=f"{page.name} live")


def _answer(request: Request, page: Page, html: str) -> Response:
    body = html.encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "Content-Security-Policy": policy(page.charts), "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="text/html; charset=utf-8", headers=headers)


def policy(charts: bool) -> str:
    """The Content-Security-Policy of a page. Plotly writes style sheets, so charts need styles in the page."""
    return _POLICY.format(styles=" 'unsafe-inline'" if charts else "")


_STATUS = ((BadPageQuery, 400), (PageForOperators, 403), (LedgerError, 503))


def _refused(_request: Request, error: Exception) -> Response:
    """An error as a page; the script of an open page shows its text in the status line."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = {**HEADERS, "Content-Security-Policy": policy(charts=False)}
    html = _environment().get_template("refusal.html").render(page=None, reason=str(error), every=0)
    return Response(html, status, headers, "text/html; charset=utf-8")


async def _static(name: str) -> Response:
    """A file of the pages. Its URL has its digest, so that it is kept for as long as it is the same."""
    file = _files().get(name)
    if file is None:
        return Response(status_code=404, headers=HEADERS)
    headers = {**HEADERS, "Cache-Control": "private, max-age=31536000, immutable"}
    return FileResponse(file, media_type=TYPES[file.suffix], headers=headers)


def _data_docs(site: Callable[[], Site], slot: str, run: str, name: str) -> Response:
    """A page of a run's Data Docs, kept on this machine by the task that judged the night."""
    settings = site().settings
    file = docs_file(settings.paths.var, slot, run, name) if slot in settings.slots else None
    return _kept(file, "No Data Docs of that run are kept here.")


def _benchmark_docs(site: Callable[[], Site], campaign: str) -> Response:
    """The Data Docs of a campaign, kept on this machine by the task that judged it."""
    return _kept(docs_of_campaign(site().settings.paths.var, campaign), "No Data Docs of that campaign are kept here.")


def _benchmark_report(site: Callable[[], Site], campaign: str) -> Response:
    """The report of a campaign, kept on this machine by the task that judged it."""
    # its scripts are in the page: the sandbox keeps them from everything that the login is for
    policy = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    file = report_file(site().settings.paths.var, campaign)
    return _kept(file, "No report of that campaign is kept here.", f"{policy}img-src data: blob:")


def _kept(file: Path | None, missing: str, policy: str = "default-src 'none'; style-src 'unsafe-inline'") -> Response:
    """A file as a page, or 404 with the text for one that is missing."""
    if file is None:
        return Response(missing, 404, HEADERS, "text/plain; charset=utf-8")
    headers = {**HEADERS, "Content-Security-Policy": policy}
    return FileResponse(file, media_type="text/html; charset=utf-8", headers=headers)


@cache
def _files() -> dict[str, Path]:
    files = {file.name: file for file in STATIC.iterdir() if file.suffix in TYPES}
    plotly = find_spec("plotly")
    if plotly is not None and plotly.origin is not None:
        files["plotly.min.js"] = Path(plotly.origin).parent / "package_data" / "plotly.min.js"
    return files
