"""The addresses of the pages. Before anything of a checkpoint is shown, its own header says whose it is, each time anew.

All are plain functions: FastAPI runs these in threads, because stores and databases block.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, urlsplit

import msgspec
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads it
from airflow.configuration import conf
from fastapi import APIRouter, Depends, Request  # noqa: TC002 - FastAPI reads it
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import CheckpointError
from airflow_ckpt_provider.overview.actions import newest
from airflow_ckpt_provider.overview.details import details
from airflow_ckpt_provider.ui.access import NotAllowedError, Viewer
from airflow_ckpt_provider.ui.deciding import Decision, action_of
from airflow_ckpt_provider.ui.found import Search, found_for, searched
from airflow_ckpt_provider.ui.pages import CheckpointPage, render
from airflow_ckpt_provider.ui.stores import DEFAULT, known_stores, open_store
from airflow_ckpt_provider.ui.task_keys import Instance
from airflow_ckpt_provider.ui.task_states import task_state

if TYPE_CHECKING:
    from airflow_ckpt_provider.overview.facts import AttemptFacts, Details

router = APIRouter()

#: Files that pages load, with their types.
_STATIC = {"page.css": "text/css", "page.js": "text/javascript", "theme.js": "text/javascript", "icon.svg": "image/svg+xml"}

#: Bytes of the largest form.
_LARGEST = 16_384


@router.get("/static/{name}")
def static(name: str) -> Response:
    """A script or a style."""
    if name not in _STATIC:
        raise HTTPException(404, "There is no such file.")
    content = (files("airflow_ckpt_provider.ui") / "static" / name).read_bytes()
    return Response(content, media_type=_STATIC[name], headers={"Cache-Control": "private, max-age=300"})


@router.get("/")
def all_checkpoints(user: GetUserDep, conn_id: str = DEFAULT, q: str = "", state: str = "", page: int = 1) -> HTMLResponse:
    """The checkpoints in a store, as far as the user may see them."""
    viewer = Viewer(user, conn_id)
    search = Search(q.strip(), state, max(1, page))
    stores = [name for name in known_stores() if name in {conn_id, DEFAULT} or viewer.may_read_connection(name)]
    values = {"title": "Checkpoints", "conn_id": conn_id, "stores": stores, "search": search}
    try:
        result = searched(open_store(conn_id), viewer, search)
    except CheckpointError as error:
        return HTMLResponse(render("list.html", result=None, problem=str(error), **values))
    return HTMLResponse(render("list.html", result=result, problem="", **values))


@router.get("/run")
def of_run(user: GetUserDep, dag_id: str, run_id: str, conn_id: str = DEFAULT, *, again: bool = False) -> HTMLResponse:
    """The checkpoints of a Dag run.

    :param again: asked for again by a page that waits, for which a whole store is not read.
    """
    return _of_instance(Viewer(user, conn_id), Instance(dag_id, run_id), conn_id, again=again)


@router.get("/task")
def of_task(
    user: GetUserDep,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: str = "",
    conn_id: str = DEFAULT,
    *,
    again: bool = False,
) -> HTMLResponse:
    """The checkpoints of a task instance; see ``of_run``."""
    # Airflow leaves the placeholder in the address of a task that is not mapped.
    index = int(map_index) if map_index.isdecimal() and len(map_index) < 10 else -1
    return _of_instance(Viewer(user, conn_id), Instance(dag_id, run_id, task_id, index), conn_id, again=again)


@router.get("/checkpoint")
def one_checkpoint(user: GetUserDep, key: str, conn_id: str = DEFAULT, generation: int | None = None) -> HTMLResponse:
    """One checkpoint."""
    return HTMLResponse(_page(Viewer(user, conn_id), key, conn_id, generation).html())


@router.get("/live.json")
def live(user: GetUserDep, key: str, conn_id: str = DEFAULT, generation: int | None = None) -> JSONResponse:
    """What changes on the page of one checkpoint while it runs."""
    return JSONResponse(_page(Viewer(user, conn_id), key, conn_id, generation).live())


@router.get("/checkpoint.json")
def facts(user: GetUserDep, key: str, conn_id: str = DEFAULT, generation: int | None = None) -> JSONResponse:
    """All facts of one checkpoint."""
    return JSONResponse(_details(Viewer(user, conn_id), key, conn_id, generation).to_json())


@router.get("/action")
def confirm(user: GetUserDep, action: str, key: str, conn_id: str = DEFAULT, table_conn_id: str = "") -> HTMLResponse:
    """What an action would do, with a button that does it. Changes nothing."""
    decision = _decision(Viewer(user, conn_id), action, key, conn_id, table_conn_id)
    values = {"title": key, "decision": decision, "header": decision.checkpoint.header}
    try:
        return HTMLResponse(render("confirm.html", said=decision.announce(), problem="", **values))
    except CheckpointError as error:
        return HTMLResponse(render("confirm.html", said="", problem=str(error), **values))


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form that this application's own page has sent.

    :raises HTTPException: if another page has sent it, or none.
    """
    _require_own_page(request)
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            raise HTTPException(413, "The form is too large.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _require_own_page(request: Request) -> None:
    origin = request.headers.get("origin", "")
    own = {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="")).netloc}
    site = request.headers.get("sec-fetch-site", "same-origin")
    try:
        sent_by = urlsplit(origin).netloc
    except ValueError:
        sent_by = ""
    if sent_by not in own - {""} or site != "same-origin":
        raise HTTPException(403, "This was not sent by a page of this Airflow. Open the checkpoint in Airflow, and decide there.")


@router.post("/action")
def act(user: GetUserDep, form: Annotated[dict[str, str], Depends(_form)]) -> HTMLResponse:
    """Do what was confirmed, if nothing has come in between."""
    key, conn_id = form.get("key", ""), form.get("conn_id", DEFAULT)
    decision = _decision(Viewer(user, conn_id), form.get("action", ""), key, conn_id, form.get("table_conn_id", ""))
    header = decision.checkpoint.header
    if form.get("generation") != str(header.generation):
        raise HTTPException(409, f"Generation {header.generation} of the key was opened meanwhile: look again, and decide again.")
    values = {"title": key, "decision": decision, "header": header}
    try:
        return HTMLResponse(render("done.html", said=decision.perform(), problem="", **values))
    except CheckpointError as error:
        return HTMLResponse(render("done.html", said="", problem=str(error), **values), 409)


def _decision(viewer: Viewer, action: str, key: str, conn_id: str, table_conn_id: str) -> Decision:
    checkpoint = newest(open_store(conn_id), IdempotenceKey(key))
    viewer.require_changing(checkpoint.header.origin.dag_id)
    return Decision(viewer, action_of(action), checkpoint, conn_id, table_conn_id)


def _details(viewer: Viewer, key: str, conn_id: str, generation: int | None) -> Details:
    """The facts of a generation whose header says that the viewer may see it."""
    store, name = open_store(conn_id), IdempotenceKey(key)
    checkpoint = newest(store, name) if generation is None else Checkpoint.at(store, name, generation)
    viewer.require_seeing(checkpoint.header.origin.dag_id)
    found = details(store, name, checkpoint.header.generation)
    return msgspec.structs.replace(found, attempts=[_as_seen(attempt, viewer) for attempt in found.attempts])


def _as_seen(attempt: AttemptFacts, viewer: Viewer) -> AttemptFacts:
    """An attempt, without what tells of a Dag that the viewer may not see: whoever has the key may work on a write."""
    if viewer.may_see(attempt.dag_id):
        return attempt
    return msgspec.structs.replace(attempt, dag_id="", task_id="", run_id="", map_index=-1, host="", pid=0)


def _page(viewer: Viewer, key: str, conn_id: str, generation: int | None) -> CheckpointPage:
    found = _details(viewer, key, conn_id, generation)
    newest = found.attempts[-1] if found.attempts else found.summary
    instance = Instance(newest.dag_id, newest.run_id, newest.task_id, newest.map_index)
    return CheckpointPage(found, viewer, conn_id, task_state(instance) if instance.dag_id else None, generation)


def _of_instance(viewer: Viewer, instance: Instance, conn_id: str, *, again: bool) -> HTMLResponse:
    """The page of the checkpoint of an instance, or a list if it has several."""
    if not viewer.may_see(instance.dag_id):
        raise NotAllowedError("You may not see the task instances of this Dag.")
    found = found_for(instance, viewer, conn_id, deep=not again)
    if len(found.summaries) == 1 and found.summaries[0].key and not (found.problems or found.hidden or found.more):
        (store,) = found.conn_ids
        return HTMLResponse(_page(viewer.at(store), found.summaries[0].key, store, None).html())
    return HTMLResponse(render("instance.html", title="Checkpoints", instance=instance, found=found))
