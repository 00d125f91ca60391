"""The configuration page lists every setting as it is."""

from dataclasses import fields
from pathlib import Path

from headwater.server.settings import Settings, option_name, variable_name

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def rows() -> list[str]:
    """Write the table of the page from the settings themselves."""
    return [
        f"| `{option_name(item)}` | `{variable_name(item)}` | `{item.default}` "
        f"| {item.metadata['help']} |"
        for item in fields(Settings)
    ]


def test_the_table_is_what_the_settings_say() -> None:
    listed = [line for line in PAGE.read_text().splitlines() if line.startswith("| `--")]
    assert listed == rows()
