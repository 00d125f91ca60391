"""Live queries show, after every commit, what asking anew would."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.state import (
    KEY,
    MemoryBackend,
    average,
    change,
    collection,
    count,
    define_stream_state,
    encode_events,
    field,
    largest,
    smallest,
    sum_of,
)
from headwater.state.collections import Collection
from headwater.state.engine import Engine, Hooks
from headwater.state.fold import Incoming

STATE = define_stream_state({"users": collection(type="user"), "posts": collection(type="post")})

USERS = st.fixed_dictionaries({"team": st.sampled_from([None, "a", "b"]), "age": st.integers(0, 3)})
POSTS = st.fixed_dictionaries(
    {"by": st.sampled_from(["1", "2", "3", None]), "n": st.integers(0, 3)}
)
EVENTS = st.lists(
    st.one_of(
        st.builds(lambda k, v: change("insert", "user", k, v), st.sampled_from("123"), USERS),
        st.builds(lambda k, v: change("insert", "post", k, v), st.sampled_from("pqrs"), POSTS),
        st.builds(lambda k: change("delete", "user", k), st.sampled_from("123")),
        st.builds(lambda k: change("delete", "post", k), st.sampled_from("pqrs")),
    ),
    max_size=6,
)


@given(st.lists(EVENTS, max_size=6))
@settings(max_examples=150, deadline=None)
def test_incremental_equals_anew(batches: list[list[Any]]) -> None:
    engine = Engine(STATE, MemoryBackend(), Hooks(), "stop")
    engine.take(Incoming(b"[]", "-1", "0", True))
    users = Collection(engine, "users", STATE.users)
    posts = Collection(engine, "posts", STATE.posts)
    joined = posts.query().join(users, on=("by", KEY))
    queries = [
        users.query().where(field("age") > 1).order_by("-age", "team").limit(2),
        joined.where(team=None),
        posts.query().join(users, on=("by", KEY), how="left").order_by("users.age"),
        joined.group_by(
            "users.team",
            posts=count(),
            total=sum_of("posts.n"),
            mean=average("posts.n"),
            least=smallest("posts.n"),
            most=largest("posts.n"),
        ).order_by("-posts"),
        users.query().join(users, on=("age", "age")).select("users.age"),
    ]
    live = [query.live() for query in queries]
    for number, events in enumerate(batches):
        engine.tell(
            engine.take(Incoming(encode_events(events), str(number), str(number + 1), True))
        )
        for query, each in zip(queries, live, strict=True):
            assert each.rows == query.run()


def test_what_a_function_raises_is_raised_to_whoever_looks() -> None:
    engine = Engine(STATE, MemoryBackend(), Hooks(), "stop")
    engine.take(Incoming(b"[]", "-1", "0", True))
    live = Collection(engine, "users", STATE.users).query().where(lambda row: row["x"]).live()
    engine.tell(engine.take(Incoming(encode_events([change("insert", "user", "1", {})]), "0", "1")))
    try:
        _ = live.rows
    except KeyError:
        return
    raise AssertionError("the error was lost")
