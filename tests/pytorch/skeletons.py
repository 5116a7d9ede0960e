#!/usr/bin/env python3
"""The skeletons that students begin with: each has 0 points, and each failed line names the first method to write.

python skeletons.py judges the skeleton of each stage, and exits with 1 if one does anything else.
"""
import re
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parents[2] / "course" / "pytorch"
sys.path.insert(0, str(COURSE))
import judge  # noqa: E402
import stages  # noqa: E402


def problems(stage):
    file = COURSE / "skeletons" / f"{stage}.py"
    name = re.search(r"^class (\w+)", file.read_text(), re.MULTILINE)[1]
    if stages.guess(name) != stage:
        yield f"the name {name} does not say the stage"
    for item in judge.judge(str(file), name, stage)["items"]:
        if item["points"] or f": NotImplementedError: write {name}.__init__(): " not in item["message"]:
            yield f"{item['points']} points for '{item['idea']}': {item['message']}"


def main():
    found = [f"skeleton {stage}: {text}" for stage in stages.STAGES for text in problems(stage)]
    for text in found:
        print(text)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
