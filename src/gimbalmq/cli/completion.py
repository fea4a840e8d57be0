"""``gimbalmq completion``: a script for bash, zsh or fish, made from the parser itself."""

from __future__ import annotations

import argparse

from gimbalmq.cli.nouns import MQADMIN, NOUNS

_SHELLS = ("bash", "zsh", "fish")

_EPILOG = """\
examples:
  source <(gimbalmq completion bash)                        for this shell; put it into ~/.bashrc to keep it
  gimbalmq completion zsh > "${fpath[1]}/_gimbalmq"
  gimbalmq completion fish > ~/.config/fish/completions/gimbalmq.fish
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a shell's completion script",
        description="Prints a script that completes commands and options.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=_SHELLS, help="for which shell")
    parser.set_defaults(run=_run, log_level="warning", log_file=None, debug=False)


def _run(args: argparse.Namespace) -> int:
    print(script(args.shell, words_by_command()))
    return 0


def words_by_command() -> dict[str, list[str]]:
    """What may follow: under "" the commands, under "topic" its verbs, under "topic list" the options."""
    from gimbalmq.cli.command_line import build_parser

    found: dict[str, list[str]] = {}
    for chosen in [*NOUNS, *MQADMIN, "server", "namesrv"]:
        try:
            parser = build_parser(chosen, runs_broker=False)
        except ImportError:  # a noun whose extra is not installed
            continue
        _walk(parser, "", found, only=chosen)
    verbs = found["broker"]
    _walk(build_parser("broker"), "", found, only="broker")
    found["broker"] = sorted(
        {*verbs, *found["broker"]}
    )  # it is followed by verbs, or by the options of a server
    found[""] = sorted({*NOUNS, "server", "namesrv"})
    return found


def _walk(
    parser: argparse.ArgumentParser, path: str, found: dict[str, list[str]], only: str | None = None
) -> None:
    words: list[str] = []
    for action in parser._actions:
        words += [option for option in action.option_strings if option.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                if only is None or name == only:
                    _walk(child, f"{path} {name}".strip(), found)
            words += action.choices
    found[path] = sorted(words)


def script(shell: str, words: dict[str, list[str]]) -> str:
    """The completion script; commands beyond the second word complete their options."""
    if shell == "fish":
        lines = ["complete -c gimbalmq -f"]
        for path, choices in sorted(words.items()):
            tests = [f"__fish_seen_subcommand_from {word}" for word in path.split()]
            when = "; and ".join(tests) or "__fish_use_subcommand"
            for word in choices:
                what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
                lines.append(f"complete -c gimbalmq -n '{when}' {what}")
        return "\n".join(lines)
    cases = "\n".join(
        f'    "{path}") words="{" ".join(choices)}" ;;' for path, choices in sorted(words.items())
    )
    body = f"""\
_gimbalmq() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" path="" words="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) break ;; esac
    case "$path" in *" "*) break ;; "") path="$word" ;; *) path="$path $word" ;; esac
  done
  case "$path" in
{cases}
    *) path="${{path%% *}}"; case "$path" in
{cases}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _gimbalmq gimbalmq"""
    if shell == "zsh":
        return f"#compdef gimbalmq\nautoload -U +X bashcompinit && bashcompinit\n{body}"
    return body
