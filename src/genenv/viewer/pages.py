"""The pages of the viewer, and their server. Whatever a model wrote is shown as text, never as markup."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from socket import gethostname
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from anyio.to_thread import current_default_thread_limiter
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genenv.errors import DataError, GenenvError
from genenv.files import cache_folder
from genenv.http.guard import Access, is_same
from genenv.http.server import HttpServer, Service
from genenv.texts import clean, inert
from genenv.viewer import BadAddress, address, asking, compare, curves, rounds, tasks, whole
from genenv.viewer.alarms import alarms
from genenv.viewer.evaluations import EvaluationPages, Evaluations
from genenv.viewer.folders import NotFound, Rounds, Run, Runs, reading
from genenv.viewer.lists import Indices
from genenv.viewer.task_pages import TaskPages

_CUT = 3000
"""Characters of a text that a page shows; a link leads to the rest."""
_LONGEST_QUERY = 500
"""Characters of a text that is searched for."""
_MOST_RUNS = 200
"""Runs that are compared at once."""
_THREADS = 4
"""Pages that are made at once; each has a connection to a store."""
_SWITCH_S = 0.0005
"""Seconds after which a thread lets another one run."""
_SEPARATORS = re.compile("([/=+:._,](?=[^<]))")
"""Where a name may be broken. An escape such as `&amp;` has none of them."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers of every answer: nothing is loaded from elsewhere, and no text becomes a script."""


TERMS = {
    "held-out success": "share of the held-out tasks that the agent solves at temperature 0, from the first "
    "evaluation to the last. Nobody trains on these tasks.",
    "valid rate": "share of what the simulator wrote that passed the gate and became tasks, from the first "
    "round to the last.",
    "p̂": "the success rate of a task, or of a batch of tasks from one context: the share of its rollouts "
    "that succeeded.",
    "success in training": "share of the rollouts of a round that solve their task, from the first round to "
    "the last.",
    "late mean p̂": "mean p̂ of the batches, averaged over the last third of the rounds. Near alpha (0.5) the "
    "tasks are at the agent's level.",
    "target band": "the mean p̂ that a round should have: at most 0.15 from curriculum.alpha, which "
    "moves to curriculum.alpha_last if that is set.",
    "mixed outcomes": "a task that some of its rollouts solve and some do not. Only such tasks give a "
    "group-relative advantage, so only they change the agent.",
    "learned, unlearned": "of held-out tasks. Learned: not solved in the first evaluation, solved in the "
    "last. Unlearned: solved in an evaluation before, not in the last.",
    "lost, won": "of held-out tasks in two evaluations. Lost: solved in the earlier one alone. Won: in "
    "the later one alone.",
    "mix, within": "two parts of a change of success: other kinds of tasks were rolled out, or tasks of the "
    "same kinds were solved more or less often.",
    "R_env": "the simulator's reward for a batch of tasks: the nearer p̂ is to alpha, the higher; or what "
    "curriculum.env_reward and curriculum.agents_reward name instead.",
    "regret": "of a task: success of the strong agent minus that of the weak one.",
    "base task": "a task of the environment's own data, which the simulator varies.",
    "alarms": "sentences about what usually means that a run goes wrong.",
    "KL": "how far a policy has moved from its start, in nats per token.",
    "entropy": "how undecided a policy is, in nats per token; near 0 it always says the same.",
    "advantage": "how much better than its group a rollout was; the update makes its tokens more likely if "
    "it is above 0.",
}
"""Terms of the pages, with what they mean."""


def compared(names: Sequence[str]) -> str:
    """Return the path of a comparison of runs and folders of runs."""
    return f"/compare?{urlencode([('run', clean(name)) for name in names])}"


def environment(package: str = "genenv.viewer") -> Environment:
    """Return what renders the templates of a package; texts in them become harmless."""
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters |= {"pretty": _pretty, "share": _share, "lasting": _lasting, "moment": _moment}
    environment.filters |= {
        "breakable": _breakable,
        "points": rounds.points,
        "percent": rounds.percent,
        "short": curves.short,
    }
    own = {"address": address, "query": asking, "cut": _CUT, "compared": compared, "TERMS": TERMS}
    environment.globals.update(own)  # pyright: ignore[reportCallIssue, reportArgumentType] - the type lists Jinja's own
    return environment


def _visible(value: object) -> object:
    """Replace invisible and direction-changing characters of a text by escapes that can be seen."""
    if isinstance(value, bytes):
        value = tasks.readable(value)
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(name: str) -> Markup:
    """Return a long name that may be broken after its separators, and not in the middle of a word."""
    return Markup(_SEPARATORS.sub("\\1<wbr>", str(escape(inert(name)))))  # noqa: S704 - what is escaped


def _pretty(value: object, indent: int | None = 2) -> str:
    """Return a JSON value as indented text; text as it is."""
    try:
        return (
            value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, indent=indent, default=str)
        )
    except RecursionError:
        return "(nested too deeply to be shown)"


def _share(row: Mapping[str, int | None]) -> str:
    """Return how many rollouts of a row with `tried` and `solved` succeeded."""
    tried = row["tried"]
    return (
        f"{row['solved'] or 0} of {tried} ({(row['solved'] or 0) / tried:.0%})" if tried else "not rolled out"
    )


def _lasting(seconds: float) -> str:
    """Return how long something takes, as `40 s`, `12 min` or `3 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _moment(seconds: float) -> str:
    """Return a time since 1970 as date and time."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


class Pages:
    """The pages over the runs of a folder."""

    def __init__(self, runs: Runs, indices: Indices | None = None) -> None:
        """Show these runs, with their side files if there are any."""
        self._runs, self._templates, self._making = runs, environment(), threading.Lock()
        self.data = TaskPages(runs, self.page, indices)
        self.chat = False
        """Whether pages link to a chat."""

    def page(self, template: str, request: Request, status: int = 200, **values: object) -> Response:
        """Return a page, or only its part that changes while a run is written."""
        part = "live" if request.headers.get("hx-request") else ""
        here = str(request.url.path)
        again = f"{here}?{request.url.query}" if request.url.query else here
        shown = self._templates.get_template(template).render(
            here=here, again=again, part=part, chat=self.chat, **values
        )
        return HTMLResponse(shown, status)

    def _run(self, request: Request) -> Run:
        return self._runs.find(request.path_params["run"])

    def error(self, request: Request, status: int, sentence: str) -> Response:
        """Say in one sentence why there is no such page."""
        return self.page("error.html", request, status, title="Not shown", sentence=sentence)

    def runs(self, request: Request, note: str = "") -> Response:
        """List all runs, or those whose name or variant has all words of a text. Marks outlast the filter."""
        text = request.query_params.get("text", "")[:_LONGEST_QUERY]
        words, known = text.lower().split(), self._runs.all()
        named = {run.name: f"{run.name} {run.text('variant')}".lower() for run in known}
        found = [run for run in known if all(word in named[run.name] for word in words)]
        folders, chosen = compare.folders(found, known), request.query_params.getlist("run")
        shown = {run.name for run in found} | {folder.name for folder in folders}
        return self.page(
            "runs.html",
            request,
            title="Runs",
            rows=[(run, curves.numbers(run), curves.spark(run), alarms(run)) for run in found],
            folders=folders,
            chosen=chosen,
            hidden=[name for name in dict.fromkeys(chosen) if name not in shown and _is_there(name, known)],
            text=text,
            note=note,
            filtered=[run.name for run in found] if words and 1 < len(found) <= _MOST_RUNS else [],
            root=self._runs.root.name,
        )

    def compare(self, request: Request) -> Response:
        """Show the chosen runs side by side: `run` is the name of a run, or of a folder of runs."""
        found = self._chosen(request)
        if len(found) < 2:
            return self.runs(request, "Mark two or more runs, or a folder of runs, to compare them.")
        groups, shown, along, left = self._compared(request)
        wanted = request.query_params.get("base", "")
        base = next((group for group in groups if group.name == wanted), groups[0])
        contrasts, notes = compare.paired(groups, base)
        runs = [run for group in groups for run in group.runs]
        return self.page(
            "compare.html",
            request,
            title="Comparison",
            groups=groups,
            base=base,
            shown=shown,
            along=along,
            choices=compare.SHOWN,
            axes=list(compare.ALONG),
            chosen=request.query_params.getlist("run"),
            elsewhere=compared([run.name for run in runs]).replace("/compare", "/", 1),
            charts=compare.charts(groups, shown, along, drawn=False),
            contrasts=contrasts,
            notes=[*left, *notes],
            differing=compare.differing(groups),
            costs=compare.costs(groups),
            live=any(run.state == "running" for run in runs),
            done=sum(len(run.rounds) for run in runs),
            data=f"/compare/curves?{request.url.query}",
        )

    def compared(self, request: Request) -> Response:
        """Return the charts of a comparison as data."""
        return JSONResponse({"charts": compare.charts(*self._compared(request)[:3])})

    def _compared(self, request: Request) -> tuple[list[compare.Group], str, str, list[str]]:
        """Return the chosen runs by configuration, the metrics that are shown, and what they run along.

        Last come sentences about runs that are left out.
        """
        query, found = request.query_params, self._chosen(request)
        if not found:
            raise BadAddress("no run is chosen: go back to the runs, and mark two or more")
        shown, along = query.get("show", "key"), query.get("along", "rounds")
        groups, notes = compare.limited(compare.groups(found), _MOST_RUNS)
        return (
            groups,
            shown if shown in compare.SHOWN else "key",
            along if along in compare.ALONG else "rounds",
            notes,
        )

    def _chosen(self, request: Request) -> list[Run]:
        """Return the runs that the address names, each or by their folder.

        Raises:
            NotFound: there is no such run or folder.
        """
        found = dict[str, Run]()
        for name in dict.fromkeys(request.query_params.getlist("run")):
            try:
                several = [self._runs.find(name)]
            except NotFound:
                several = self._runs.all(f"{name}/") if name else []
                if not several:
                    raise
            found |= {run.name: run for run in several}
        return list(found.values())

    def run(self, request: Request) -> Response:
        """Show the curves and the last metrics of a run, all rounds or a range."""
        run, notes, query = self._run(request), list[str](), request.query_params
        bounds = {name: whole(query, name) for name in ("from", "to")}
        shown, round_, rewards = run.within(*bounds.values()), whole(query, "round"), None
        try:
            rewards = reading(run, lambda db: curves.rewards(db, round_))
        except DataError as error:
            notes.append(f"{error}. Its tasks cannot be shown; the curves are those of metrics.jsonl.")
        return self.page(
            "run.html",
            request,
            title=run.name,
            run=run,
            notes=[*run.notes, *notes],
            numbers=curves.numbers(run),
            alarms=alarms(run),
            falls=rounds.falls(run),
            table=curves.table(run),
            sections=curves.sections(shown),
            rewards=rewards,
            bounds=bounds,
        )

    def curves(self, request: Request) -> Response:
        """Return the charts of a run as data."""
        run, query = self._run(request), request.query_params
        bounds = (whole(query, "from"), whole(query, "to"))
        kept = run.rounds.made if isinstance(run.rounds, Rounds) else {}
        with self._making:  # all pages that are open ask at once for the charts of a new round
            if bounds not in kept:
                shown = run.within(*bounds)
                found = {"rounds": list(shown.rounds), "charts": curves.charts(shown)}
                kept[bounds] = bytes(JSONResponse(found).body)
        return Response(kept[bounds], media_type="application/json")

    def config(self, request: Request) -> Response:
        """Show the settings of a run by section."""
        run = self._run(request)
        rows = [(name.rpartition(".")[0], name, value) for name, value in run.settings.items()]
        return self.page("settings.html", request, title=f"Settings of {run.name}", run=run, settings=rows)


def _is_there(name: str, runs: Sequence[Run]) -> bool:
    """Return whether there is a run, or a folder of runs, of a name."""
    return any(run.name == name or run.name.startswith(f"{name}/") for run in runs)


class ChatPages(Protocol):
    """Pages of a chat with an agent, which a package that loads models provides."""

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        ...

    def close(self) -> None:
        """End what is under way."""
        ...


MadeChat = Callable[[Runs, Callable[..., Response]], ChatPages]
"""Makes the pages of a chat from the runs and what renders a template."""


class Viewer(HttpServer):
    """The server of the pages. It answers GET and HEAD, and POST for the reader's marks and for a chat."""

    keyless = ("/enter",)
    types = ("application/x-www-form-urlencoded",)

    def __init__(
        self,
        runs: Path,
        host: str,
        port: int,
        *,
        names: tuple[str, ...] = (),
        evaluations: Path | None = None,
        chat: MadeChat | None = None,
    ) -> None:
        """Bind an address.

        Args:
            runs: the folder of the runs, or of one.
            host: the address; beyond loopback every request needs a token.
            port: 0 for a free port.
            names: further names by which browsers may call the server.
            evaluations: a folder of results of `genenv eval`, besides those among the runs.
            chat: makes the pages of a chat; None: there is none.

        Raises:
            UsageError: there is no such folder, or the address is not available.
        """
        found = Runs(runs)
        self._indices = Indices(cache_folder() / "viewer")
        self._pages = Pages(found, self._indices)
        self.data = self._pages.data
        """The pages of tasks; `data.replay` may be set."""
        self.marks = self.data.marks.file
        """The reader's file of marks."""
        roots = [found.served, *([] if evaluations is None else [evaluations])]
        self._evaluations = EvaluationPages(self._pages.page, Evaluations(roots))
        self._chat = None if chat is None else chat(found, self._pages.page)
        self._pages.chat = chat is not None
        super().__init__(host, port, Access(names=names))
        self.access = replace(self.access, cookie=f"genenv-view-{urlsplit(self.url).port}")
        key = self.access.key
        url = self.url.replace("//0.0.0.0:", f"//{gethostname()}:").replace("//[::]:", f"//{gethostname()}:")
        self.entrance = self.url if key is None else f"{url}/enter?token={key}"
        """The address for a browser, with the token if there is one."""

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[Service]:
        current_default_thread_limiter().total_tokens = _THREADS
        # A query gives up the interpreter at each row. By default it may wait 5 ms to get it back.
        sys.setswitchinterval(_SWITCH_S)
        pages, data = self._pages, self._pages.data
        run = [
            Route(f"/runs/{{run:path}}/-/{name}", page, methods=["GET"])
            for name, page in (
                *(("", pages.run), ("curves", pages.curves), ("tasks", data.tasks), ("task", data.task)),
                *(("trace", data.trace), ("refused", data.refused), ("text", data.text)),
                *(("config", pages.config), ("sql", data.sql), ("rounds", data.rounds)),
            )
        ]
        run.append(Route("/runs/{run:path}/-/mark", data.mark, methods=["POST"]))
        run += [
            Route(f"/evaluations{name}", page, methods=["GET"])
            for name, page in (
                ("", self._evaluations.all),
                ("/items", self._evaluations.items),
                ("/item", self._evaluations.item),
            )
        ]
        chat = [] if self._chat is None else self._chat.routes()
        with contextlib.ExitStack() as ending:
            ending.callback(self._indices.close)
            if self._chat is not None:
                ending.callback(self._chat.close)
            yield Service(
                Starlette(
                    routes=[
                        Route("/", pages.runs, methods=["GET"]),
                        Route("/compare", pages.compare, methods=["GET"]),
                        Route("/compare/curves", pages.compared, methods=["GET"]),
                        Route("/favicon.ico", RedirectResponse("/static/icon.svg"), methods=["GET"]),
                        Route("/enter", self._enter, methods=["GET"]),
                        *run,
                        *chat,
                        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
                    ],
                    middleware=[Middleware(_with_headers)],
                    exception_handlers={GenenvError: self._refused, HTTPException: self._failed},
                )
            )

    def _enter(self, request: Request) -> Response:
        """Exchange the token of the printed address for a cookie, so that no other address has it."""
        key, given = self.access.key, request.query_params.get("token", "")
        if key is not None and not is_same(given, key):
            return self._pages.error(
                request, 401, "The token is wrong; open the address that genenv view printed."
            )
        answer = RedirectResponse("/", 303)
        if key is not None:
            answer.set_cookie(self.access.cookie, key, httponly=True, samesite="lax")
        return answer

    def _refused(self, request: Request, error: Exception) -> Response:
        kinds: list[tuple[type[Exception], int]] = [(NotFound, 404), (BadAddress, 400), (DataError, 503)]
        status = next((status for kind, status in kinds if isinstance(error, kind)), 500)
        return self._pages.error(request, status, f"{error}.")

    def _failed(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        answer = self._pages.error(request, status, f"{HTTPStatus(status).phrase}.")
        answer.headers.update(getattr(error, "headers", None) or {})
        return answer


def _with_headers(app: ASGIApp) -> ASGIApp:
    """Return an application whose answers have the headers that keep model text harmless."""

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await app(scope, receive, sending)

    return answering
