"""What the options of source and sink may be."""

import pytest

from headwater.errors import BadOption
from headwater.spark.options import is_path, sink_options, source_options

URL = {"url": "http://127.0.0.1:4437"}


def test_names_are_read_in_any_case_and_everything_has_a_default() -> None:
    options = source_options({"URL": "http://127.0.0.1:4437/", "Stream": "/a/1/"})
    assert options.server.url == "http://127.0.0.1:4437"
    assert options.streams == ("a/1",)
    assert (options.starting, options.ending, options.fail_on_data_loss) == (
        "earliest",
        "latest",
        True,
    )


@pytest.mark.parametrize(
    ("text", "streams"),
    [("a", ("a",)), ("a, b/**,a", ("a", "b/**")), ('["a,1", "b"]', ("a,1", "b"))],
)
def test_streams_are_one_a_list_or_globs(text: str, streams: tuple[str, ...]) -> None:
    assert source_options({**URL, "stream": text}).streams == streams
    assert source_options({**URL, "path": text}).streams == streams


def test_amounts_have_units() -> None:
    options = source_options({**URL, "stream": "a", "maxBytesPerTrigger": "64m"})
    assert options.max_bytes == 64 * 1024 * 1024


def test_offsets_are_words_or_a_map() -> None:
    given = {**URL, "stream": "a", "startingOffsets": '{"a": "latest"}'}
    assert source_options(given).starting == {"a": "latest"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "127.0.0.1:4437"),
        ("stream", ""),
        ("stream", "a,,b"),
        ("url", "http://"),
        ("url", "http://a:b"),
        ("stream", "[1]"),
        ("stream", "[]"),
        ("stream", "[oops"),
        ("mode", "rwa"),
        ("valueType", "text"),
        ("startingOffsets", "first"),
        ("startingOffsets", '{"a": 1}'),
        ("startingOffsets", "[]"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "many"),
        ("splitBytes", "-1"),
        ("failOnDataLoss", "perhaps"),
        ("onCorrupt", "drop"),
        ("headers", '{"a": "b\\nc"}'),
        ("token", "a\nb"),
        ("timeoutSeconds", "0"),
        ("waitSeconds", "60"),
        ("waitSeconds", "nan"),
        ("headers", "x: y"),
        ("headers", '{"x": 1}'),
        ("strem", "a"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=f"option '{name}' can't be used: "):
        source_options({**URL, "stream": "a", name: value})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("maxBytesPerTriger", "did you mean 'maxBytesPerTrigger'?"),
        ("maxbytespertriger", "did you mean 'maxBytesPerTrigger'?"),
        ("strem", "did you mean 'stream'?"),
        (
            "colour",
            (
                "there are endingOffsets, failOnDataLoss, headers, maxBytesPerTrigger, mode, "
                "onCorrupt, pushFilters, splitBytes, startingOffsets, stream, timeoutSeconds, "
                "token, types, url, valueType, waitSeconds."
            ),
        ),
    ],
)
def test_names_are_told_as_they_are_documented(name: str, told: str) -> None:
    with pytest.raises(BadOption) as raised:
        source_options({**URL, "stream": "a", name: "1"})
    message = f"option '{name}' can't be used: there is none of that name; {told}"
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream", "a/*"), ("batchId", "3"), ("batchId", "-1"), ("mode", "raw"), ("url", "")],
)
def test_what_the_sink_cannot_use_is_named(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=f"option '{name}' can't be used: "):
        sink_options({**URL, "stream": "a", name: value})


@pytest.mark.parametrize("blank", ["", " ", "/", " / "])
def test_a_blank_stream_of_the_sink_is_none(blank: str) -> None:
    assert sink_options({**URL, "stream": blank}).stream is None
    assert not is_path(blank)
