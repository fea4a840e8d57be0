"""A parser that helps: a mistake gets the usage of the command it was made in, and the word that was meant.

argparse tells of options it does not know at the top only, with the usage of the whole program. Here the innermost
command tells of them. A command without its verb lists the verbs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any, NoReturn

_COMMANDS = argparse._SubParsersAction
_ELSEWHERE = {
    f"gimbalmq broker {verb}": f"gimbalmq cluster {verb}" for verb in ("list", "status", "writable")
}
"""What many look for at the wrong word."""


class CommandParser(argparse.ArgumentParser):
    """The parser of ``gimbalmq`` and, because argparse makes children of the parent's class, of every command."""

    def __init__(self, *args: Any, also_known: Iterable[str] = (), **options: Any) -> None:
        """As argparse's; ``also_known`` are commands that work but are not listed, for suggestions."""
        super().__init__(*args, **options)
        self._also_known = also_known

    def parse_known_args(  # type: ignore[override]  # typeshed has overloads of it
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = sys.argv[1:] if args is None else list(args)
        if self._commands() is None:
            self._look_for_unknown(words)
        elif not words:
            self.print_help(sys.stderr)
            self.exit(2)
        found, extra = super().parse_known_args(words, namespace)
        if extra:
            self.error(f"{extra[0]!r} is one word too many")
        return found, extra

    def _commands(self) -> _COMMANDS[argparse.ArgumentParser] | None:
        return next((action for action in self._actions if isinstance(action, _COMMANDS)), None)

    def _look_for_unknown(self, words: list[str]) -> None:
        """Before argparse looks: it would rather say that something else is missing."""
        known = self._option_string_actions
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            is_option = name.startswith("--") or (name[:1] == "-" and name[1:2].isalpha())
            if is_option and name not in known and (name.startswith("--") or name[:2] not in known):
                self.error(f"there is no option {name}{self._meant(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, _COMMANDS) and value not in action.choices:
            listed = [choice.dest for choice in action._choices_actions]
            elsewhere = _ELSEWHERE.get(f"{self.prog} {value}")
            self.error(
                f"there is no command {value}"
                + (
                    f"; did you mean {elsewhere}?"
                    if elsewhere
                    else self._meant(str(value), [*listed, *self._also_known])
                    or f"; there are {', '.join(listed)}"
                )
            )
        super()._check_value(action, value)

    def _meant(self, word: str, known: Iterable[str]) -> str:
        from difflib import get_close_matches  # only for those who mistype

        close = get_close_matches(word, list(known), n=1)
        if not close:
            return ""
        return f"; did you mean {close[0]}?"

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def command_first(
    parser: argparse.ArgumentParser, shared: argparse.ArgumentParser, nouns: Container[str], words: list[str]
) -> list[str]:
    """``-n ADDRESS topic list`` as ``topic list -n ADDRESS``: options that all commands share may come first.

    Args:
        parser: of the whole command line; it knows ``--help`` and ``--version``, and complains.
        shared: knows the options that may come first.
        nouns: commands that are followed by a verb.
    """
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, _ = words[at].partition("=")
        if name in parser._option_string_actions:
            return words
        attached = bool(equals)
        action = shared._option_string_actions.get(name)
        if action is None and not name.startswith("--"):
            action, attached = shared._option_string_actions.get(name[:2]), True
        if action is None:
            parser.error(
                f"the option {name} stands before the command; options follow the command they belong to"
            )
        at += 1 if attached or action.nargs == 0 else 2
    front, rest = words[:at], words[at:]
    if not rest:
        parser.error(f"{' '.join(front)} is followed by no command")
    command = 2 if rest[0] in nouns and len(rest) > 1 and not rest[1].startswith("-") else 1
    return [*rest[:command], *front, *rest[command:]]


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` as both."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE: write a key, = and its value")
    return key.strip(), value.strip()


def set_option(parser: argparse.ArgumentParser, about: str) -> None:
    """``--set KEY=VALUE``, as often as wanted: settings before those of a file."""
    parser.add_argument("--set", type=pair, action="append", default=[], metavar="KEY=VALUE", help=about)
