"""An undo of any history gives the documents from before it, twice changes nothing, and its redo brings all back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import Int64
from replset.features.undo import plan
from tests.examples import examples
from tests.rig import Client, a_set

Documents = dict[str, dict[int, dict[str, Any]]]
COLLECTIONS = ("items", "parts", "tags")
VALUES = st.one_of(st.integers(0, 3), st.dictionaries(st.sampled_from("xy"), st.integers(0, 2), max_size=2))
FIELDS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
WRITE = st.tuples(
    st.sampled_from(["insert", "replace", "set", "unset", "delete"]),
    st.sampled_from(COLLECTIONS),
    st.integers(0, 4),
    FIELDS,
)
STEPS = st.one_of(
    WRITE,
    WRITE,
    WRITE,
    st.lists(WRITE, min_size=1, max_size=4),
    st.tuples(st.sampled_from(["create", "drop", "index", "collMod"]), st.sampled_from(COLLECTIONS)),
    st.just(("dropDatabase",)),
)
Step = Any


def do(client: Client, step: Step, number: int) -> None:
    """One step, or a transaction of several writes; what cannot be done is refused and does nothing."""
    if isinstance(step, list):
        session = {"lsid": {"id": client.ok({"startSession": 1})["id"]["id"]}, "txnNumber": Int64(number)}
        for place, write in enumerate(step):
            begins = {} if place else {"startTransaction": True}
            if not client.run({**command(write), **session, "autocommit": False, **begins})["ok"]:
                return
        client.run({"commitTransaction": 1, **session, "autocommit": False}, "admin")
    else:
        client.run(command(step))


def command(step: Step) -> dict[str, object]:
    match step:
        case ("insert", name, id_, fields):
            return {"insert": name, "documents": [{"_id": id_, **fields}]}
        case ("replace", name, id_, fields):
            return {"update": name, "updates": [{"q": {"_id": id_}, "u": fields, "upsert": True}]}
        case ("set", name, id_, fields):
            return {"update": name, "updates": [{"q": {"_id": {"$gte": id_}}, "u": {"$set": fields}, "multi": True}]}
        case ("unset", name, id_, _):
            return {"update": name, "updates": [{"q": {"_id": id_}, "u": {"$unset": {"a": 1, "b.x": 1}}}]}
        case ("delete", name, id_, _):
            return {"delete": name, "deletes": [{"q": {"_id": id_}, "limit": 1}]}
        case ("index", name):
            return {"createIndexes": name, "indexes": [{"key": {"a": 1}, "name": "a"}]}
        case ("collMod", name):
            return {"collMod": name, "validationLevel": "moderate"}
        case (what, *names):
            return {what: names[0] if names else 1}
    raise AssertionError(step)


def documents(client: Client) -> Documents:
    found = {name: client.ok({"find": name, "sort": {"_id": 1}})["cursor"]["firstBatch"] for name in COLLECTIONS}
    return {name: {row["_id"]: row for row in rows} for name, rows in found.items() if rows}


def undo(client: Client, **more: object) -> dict[str, Any]:
    return client.ok({"replSetUndo": 1, "apply": True, **more}, "admin")


@examples(60)
@given(st.lists(STEPS, max_size=10), st.lists(STEPS, min_size=1, max_size=15), st.integers(1, 4))
def test_an_undo_gives_the_documents_from_before(common: list[Step], bad: list[Step], slice_size: int) -> None:
    with a_set() as rig, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "SLICE_DOCUMENTS", slice_size)
        client = rig.client()
        for number, step in enumerate(common):
            do(client, step, number)
        before, since = documents(client), rig.newest()
        for number, step in enumerate(bad):
            do(client, step, number)
        after, until = documents(client), rig.newest()
        if since == until:
            return
        span = {"from": f"{since.term}:{since.seconds}:{since.increment + 1}", "to": str(until), "ns": ["test"]}
        dry = undo(client, **span, apply=False)
        assert documents(client) == after
        first = undo(client, **span)
        assert (first["collections"], first["left"], documents(client)) == (dry["collections"], [], before)
        second = undo(client, **span)
        assert [row["changed"] for row in second["collections"]] == [0] * len(second["collections"])
        redo = undo(client, redo=first["id"])
        assert (redo["left"], documents(client)) == ([], after)


@examples(40)
@given(*[st.lists(WRITE, max_size=8) for _ in range(3)], st.sampled_from(["skip", "overwrite", "keep-newer", "merge"]))
def test_with_later_writes_twice_changes_nothing(
    common: list[Step], bad: list[Step], later: list[Step], policy: str
) -> None:
    with a_set() as rig:
        client = rig.client()
        for number, step in enumerate([("create", name) for name in COLLECTIONS] + common):
            do(client, step, number)
        since = rig.newest()
        for step in bad:
            do(client, step, 0)
        until, then = rig.newest(), documents(client)
        for step in later:
            do(client, step, 0)
        if since == until:
            return
        now = documents(client)
        span = {"from": f"{since.term}:{since.seconds}:{since.increment + 1}", "to": str(until), "ns": ["test"]}
        first = undo(client, **span, policy=policy)
        found = documents(client)
        assert undo(client, **span, policy=policy)["left"] == first["left"]
        assert documents(client) == found
        for name in COLLECTIONS:
            for id_ in range(5):
                newer = now.get(name, {}).get(id_)
                if policy in ("skip", "keep-newer") and newer != then.get(name, {}).get(id_):
                    assert found.get(name, {}).get(id_) == newer, "what was written since stays"
