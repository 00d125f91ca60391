"""One sentence out of pages."""

import pytest

from headwater.errors import BadPipeline
from headwater.spark.pipelines.failures import is_end_of_spark, reason_of
from headwater.spark.pipelines.problems import Problem

OURS = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted
=== Streaming Query ===
Traceback (most recent call last):
  File "worker.py", line 1, in main
    raise CorruptMessage(x)
headwater.errors.CorruptMessage: The message of 'a' is no JSON. Set onCorrupt.

\tat org.apache.spark.api.python.BasePythonRunner
Caused by: more
"""
PYTHON = """Job aborted due to stage failure
Traceback (most recent call last):
  File "tidy.py", line 3, in tidy
    return 1 / 0
ZeroDivisionError: division by zero

\tat org.apache.spark
"""
BATCH = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An error occurred \
in the user provided function. Reason: An exception was raised by the Python Proxy. Return \
Message: \
Traceback (most recent call last):
  File "batch.py", line 2, in first
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "batch.py", line 3, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
              ^^^^^^^^^^^^^^^
  [Previous line repeated 3 more times]
%s
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
Current State: ACTIVE
"""
JAVA = """py4j.protocol.Py4JJavaError: An error occurred while calling o85.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (localhost executor driver): \
org.apache.spark.SparkException: [WORKER] It has died. SQLSTATE: XX000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator
Caused by: java.io.EOFException
\t... 48 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler
"""
SQL = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nn` cannot be resolved. Did you mean "
    "one of the following? [`n`]. SQLSTATE: 42703; line 1 pos 7;\n'Project ['nn]\n+- Relation\n"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OURS, "The message of 'a' is no JSON. Set onCorrupt."),
        (PYTHON, "ZeroDivisionError: division by zero."),
        (BATCH % "Exception: Generic error: no", "Exception: Generic error: no."),
        (BATCH % "pyarrow.lib.ArrowInvalid: Invalid index", "ArrowInvalid: Invalid index."),
        (BATCH % "made.<locals>.Odd: it: is\nFatal: no", "Odd: it: is."),
        (BATCH % "AssertionError", "AssertionError."),
        (BATCH % JAVA, "It has died."),
        (BATCH % f"{JAVA}Caused by: java.io.IOException: No space left", "No space left."),
        (BATCH % f"{JAVA}Caused by: x.NotFound: a.b.C$D\n\t... 1 more", "NotFound: a.b.C$D."),
        (BATCH % JAVA.partition(": org.")[0] + ": java.lang.OddError", "OddError."),
        (
            SQL,
            (
                "A column with name `nn` cannot be resolved. Did you mean one of the following? "
                "[`n`]; line 1 pos 7."
            ),
        ),
        (
            (
                "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
                ": org.apache.spark.SparkException: Could not parse Master URL: 'x'\n\tat org.x"
            ),
            "Could not parse Master URL: 'x'.",
        ),
        ("", "str."),
    ],
)
def test_the_reason_is_found(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_an_endless_text_is_cut() -> None:
    assert len(reason_of("x" * 10_000)) < 700


def test_all_problems_of_a_pipeline_are_told() -> None:
    problems = [Problem("source.table", "there is none"), Problem("target.key", "there is no 'a'.")]
    told = "source.table: there is none; target.key: there is no 'a'."
    assert reason_of(BadPipeline("p", problems)) == told


def test_the_end_of_sparks_processes_is_told_from_a_failure() -> None:
    cut_short = 'Cannot run "chmod": error=0, Failed to exec spawn helper: pid: 9, signal: 15'
    for text in ("Broken pipe", "Connection reset by peer", "Python worker exited", cut_short):
        assert is_end_of_spark(RuntimeError(f"[STREAM_FAILED] {text} SQLSTATE: XXKST"))
    assert not is_end_of_spark(RuntimeError("[UNRESOLVED_COLUMN] A column can't be resolved."))


def test_a_failed_query_without_a_message_has_the_reason_of_its_cause() -> None:
    error = RuntimeError("\n=== Streaming Query ===\nIdentifier: copy")
    vars(error)["_cause"] = RuntimeError("ExitCodeException exitCode=143: ")
    assert reason_of(error).startswith("ExitCodeException exitCode=143")
    assert is_end_of_spark(error)
