"""``gimbalmq pipeline list`` and ``init``: the templates, and a new project made of one."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path


def list_templates(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    from gimbalmq.spark.pipelines import templates

    def shown(value: str) -> str:
        return value.replace("{{uri}}", "DIR").replace("{{path}}", "DIR")

    found = templates()
    if args.json:
        listed = [
            {
                "name": each.name,
                "about": each.about,
                "settings": {setting.name: shown(setting.value) for setting in each.settings},
            }
            for each in found
        ]
        print(json.dumps(listed, indent=2))
        return 0
    for number, each in enumerate(found):
        if number:
            print()
        print(f"{each.name}: {each.about}")
        width = max((len(f"{setting.name}={shown(setting.value)}") for setting in each.settings), default=0)
        for setting in each.settings:
            print(f"  {f'{setting.name}={shown(setting.value)}':<{width}}  {setting.meaning}".rstrip())
    return 0


def init(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    from gimbalmq.spark.pipelines import SPEC, copy_out, template

    chosen = template(args.template)
    folder = args.folder or Path(chosen.name)
    try:
        files = copy_out(chosen, folder, args.set)
    except OSError as error:
        raise OSError(f"{folder}: {error.strerror or error}; name a folder that can be made") from error
    print(f"{folder}: {', '.join(map(str, files))}")
    given = {key.removeprefix("gimbalmq.") for key, _ in args.set}
    left = [setting.name for setting in chosen.settings if setting.name not in given]
    if left:
        print(f"settings in {folder / SPEC} to look at: {', '.join(left)}")
    print(f"next: gimbalmq pipeline run {shlex.quote(str(folder))}")
    return 0
