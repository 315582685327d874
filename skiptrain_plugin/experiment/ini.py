"""INI text to validated sections and back, with errors that name file, section, key and what is allowed."""

from __future__ import annotations

import configparser
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.files import read_text
from skiptrain_plugin.experiment.sections import SECTIONS, Section

Values = dict[str, dict[str, str]]
"""Section → key → text."""


def parse_ini(text: str, where: str) -> Values:
    """The sections and keys of an INI file; unknown ones are an error."""
    parser = configparser.ConfigParser(interpolation=None, default_section="\0none")
    try:
        parser.read_string(text, source=where)
    except configparser.MissingSectionHeaderError as error:
        raise InputError(
            f"{where}, line {error.lineno}: expected a [SECTION] before '{error.line.strip()[:60]}'"
        ) from None
    except configparser.DuplicateSectionError as error:
        raise InputError(f"{where}, line {error.lineno}: section [{error.section}] appears twice") from None
    except configparser.DuplicateOptionError as error:
        raise InputError(f"{where}, line {error.lineno}: [{error.section}] {error.option} appears twice") from None
    except configparser.ParsingError as error:
        line, content = error.errors[0]
        raise InputError(f"{where}, line {line}: expected 'key = value', not {content.strip()[:60]}") from None
    values = {name: {key: value.strip() for key, value in parser[name].items()} for name in parser.sections()}
    for section in values:
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS, where)
        for key in values[section]:
            _check_key(section, key, where)
    return values


def read_ini(path: Path) -> Values:
    """``parse_ini`` of a file."""
    return parse_ini(read_text(path, "configuration file"), str(path))


def apply_settings(values: Mapping[str, Mapping[str, str]], settings: Iterable[str]) -> Values:
    """``values`` with each ``SECTION.key=value`` of ``--set`` put in."""
    changed = {section: dict(keys) for section, keys in values.items()}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = (part.strip() for part in name.partition("."))
        if not equals or not dot or not key:
            raise InputError(f"--set {setting}: expected SECTION.key=value, for example RUN.rounds=100")
        section, key = section.upper(), key.lower()
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS, "--set")
        _check_key(section, key, "--set")
        changed.setdefault(section, {})[key] = value.strip()
    return changed


def validated(section: str, values: Mapping[str, Any], where: str) -> Section:
    """The typed object of one section; an empty value counts as not given, and so does None for a key of ours."""
    kind, ours = SECTIONS[section], SECTIONS[section].keys()
    given = {
        key: value
        for key, value in values.items()
        if key in kind.nothing_counts or not (value == "" or (key in ours and str(value).lower() == "none"))
    }
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        place = f"{where}, [{section}] {key}".rstrip()
        if first["type"] == "missing":
            raise InputError(f"{place}: this key is missing") from None
        message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        shown = str(given.get(key, ""))[:60]
        comment = "; a comment needs a line of its own" if re.search(r"\s[;#]", shown) else ""
        raise InputError(f"{place}: must be {message}, not '{shown}'{comment}") from None


def format_ini(sections: Mapping[str, Section], heading: str = "") -> str:
    """The INI text that reads back to the same sections; ``heading`` becomes a comment at the top."""
    parser = configparser.ConfigParser(interpolation=None, default_section="\0none")
    for name, section in sections.items():
        dumped = section.model_dump(by_alias=True)
        parser[name] = {key: str(value) for key, value in dumped.items() if value is not None}
    out = io.StringIO()
    for line in heading.splitlines():
        out.write(f"; {line}\n")
    parser.write(out)
    return out.getvalue()


def _check_key(section: str, key: str, where: str) -> None:
    kind = SECTIONS[section]
    if not kind.open_ended and key not in (known := kind.keys()):
        raise unknown(f"key in [{section}]", key, known, where)
