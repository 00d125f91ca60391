"""The reference of the commands is generated from the commands."""

from tests.support.cli_reference import PAGE, reference


def test_the_reference_of_the_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "run: python -m tests.support.cli_reference"
    )
