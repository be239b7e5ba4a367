"""Words of the glossary that are explained wherever they stand."""

import re
from pathlib import Path

GLOSSARY = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


def explained(glossary: str) -> dict[str, str]:
    """The bold words in the first cells of the glossary's tables, each with its meaning as plain text."""
    rows = re.findall(r"^\| (.*?\*\*.*?) \| (.*) \|$", glossary, re.MULTILINE)
    return {word: meaning.replace("`", "") for words, meaning in rows for word in re.findall(r"\*\*(.+?)\*\*", words)}


def with_tooltips(markdown: str) -> str:
    """A page with definitions of abbreviations below it, of which the site makes tooltips."""
    definitions = (f"*[{word}]: {meaning}" for word, meaning in explained(GLOSSARY.read_text()).items())
    return "\n".join([markdown, "", *definitions, ""])
