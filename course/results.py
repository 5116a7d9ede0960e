#!/usr/bin/env python3
"""Turns the JSON that grade.sh writes into what another program reads.

    course/results.py FORMAT FILE.json >RESULT

gradescope    results.json. Each line of the table is a test.
              https://gradescope-autograders.readthedocs.io/en/latest/specs/ "Output format"
autolab       the last two lines that an autograder prints: each line of the table as a test of the stage "Lines", then
              the scores. The lab needs one problem with the name of the stage, e.g. stage1_naive.
              https://docs.autolabproject.com/lab/ "Writing Autograders", and /features/formatted-feedback/
classroom50   result.json, schema classroom50/result/v1. Reads the variables that its runner sets.
              https://github.com/foundation50/classroom50/wiki/Advanced-Autograding "The result.json contract"
junit         XML, as Jenkins reads it: a test suite for the stage, a test case for each line.
              https://github.com/jenkinsci/xunit-plugin, types/model/xsd/junit-10.xsd
csv           one line: name, stage, points, of, "built" or "does not build", the points of each line of the table

The name is that which grade_all.sh gave; else a submission NAME.c, NAME/ddp.c or NAME/collectives.c has the name NAME.
Exit status 0: done. 2: wrong usage, or FILE is no result.
"""
import csv
import io
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from datetime import datetime, timezone
from pathlib import Path


def output_of(item):
    """What the student reads about one line of the table."""
    return "" if item["passed"] else f"{item['message']}\nRead: {item['read']}"


def gradescope(result):
    tests = [
        {
            "number": str(number),
            "name": item["idea"],
            "score": item["points"],
            "max_score": item["of"],
            "status": "passed" if item["passed"] else "failed",
            "output": output_of(item),
            "visibility": "visible",
        }
        for number, item in enumerate(result["items"], 1)
    ]
    written = {
        "output": f"{result['stage']} is not graded:\n{result['errors']}" if result["errors"] else "",
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
        "leaderboard": [{"name": "Points", "value": result["points"]}],
    }
    if "seconds" in result:
        written["execution_time"] = result["seconds"]
    return json.dumps(written, indent=2)


def autolab(result):
    lines = {}
    for number, item in enumerate(result["items"], 1):
        lines[f"{number} {item['idea']}"] = {"passed": item["passed"]} | (
            {} if item["passed"] else {"hint": output_of(item)}
        )
    feedback = {"_presentation": "semantic", "stages": ["Lines"], "Lines": lines}
    return json.dumps(feedback) + "\n" + json.dumps({"scores": {result["stage"]: result["points"]}})


def classroom50(result):
    def runner(*names):
        """The first of the runner's variables that is set."""
        for name in names:
            if os.environ.get(name):
                return os.environ[name]
        stop(f"classroom50: the variable {names[0]} is not set: Classroom 50's runner sets it")

    return json.dumps(
        {
            "schema": "classroom50/result/v1",
            "classroom": runner("CLASSROOM"),
            "assignment": runner("ASSIGNMENT"),
            "assignment_type": runner("ASSIGNMENT_TYPE"),
            "owner": runner("OWNER", "USERNAME"),
            "submission": runner("SUBMISSION_TAG"),
            "commit": runner("COMMIT_URL"),
            "release": runner("RELEASE_URL"),
            "review": runner("REVIEW_URL", "COMMIT_URL"),
            # The runner puts the time of the commit in its place.
            "datetime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "score": result["points"],
            "max-score": result["of"],
            "tests": [
                {
                    "test-name": f"{number} {item['idea']}",
                    "passed": item["passed"],
                    "score": item["points"],
                    "max-score": item["of"],
                    "output": output_of(item),
                }
                for number, item in enumerate(result["items"], 1)
            ],
        },
        indent=2,
    )


def in_xml(text):
    """Without the characters that no XML may contain."""
    return re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def junit(result):
    failures = sum(not item["passed"] for item in result["items"])
    counts = {"tests": str(len(result["items"])), "failures": str(failures), "errors": "0"}
    suites = ElementTree.Element("testsuites", {"name": "lockstep"} | counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": result["stage"]} | counts)
    if "seconds" in result:
        suite.set("time", str(result["seconds"]))
    for number, item in enumerate(result["items"], 1):
        name = in_xml(f"{number} {item['idea']}")
        case = ElementTree.SubElement(suite, "testcase", {"classname": result["stage"], "name": name})
        if not item["passed"]:
            failure = ElementTree.SubElement(case, "failure", {"type": f"{item['points']} of {item['of']} points"})
            failure.set("message", in_xml(item["message"]))
            failure.text = in_xml(output_of(item))
    if result["errors"]:
        ElementTree.SubElement(suite, "system-out").text = in_xml(result["errors"])
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode")


def csv_line(result):
    path = Path(result["submission"])
    name = result.get("name") or (path.resolve().parent.name if path.name in ("ddp.c", "collectives.c") else path.stem)
    if name.startswith(("=", "+", "-", "@")):
        name = f"'{name}" # no spreadsheet shall take it for a formula
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(
        [name, result["stage"], result["points"], result["of"], "built" if result["built"] else "does not build"]
        + [item["points"] for item in result["items"]]
    )
    return line.getvalue()


FORMATS = {"gradescope": gradescope, "autolab": autolab, "classroom50": classroom50, "junit": junit, "csv": csv_line}


def stop(message):
    print(f"results: error: {message}", file=sys.stderr)
    sys.exit(2)


def read(path):
    """grade.sh's result, if it has all that the formats need."""
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
        whole = all(key in result for key in ("stage", "submission", "points", "of", "built", "errors")) and all(
            key in item for item in result["items"] for key in ("points", "of", "idea", "passed", "message", "read")
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        stop(f"{path}: {type(error).__name__}: {error}")
    return result if whole else stop(f"{path} is no result of grade.sh --json, or of an older one")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in FORMATS:
        stop(f"usage: course/results.py FORMAT FILE.json     FORMAT: {', '.join(FORMATS)}")
    sys.stdout.reconfigure(encoding="utf-8")
    print(FORMATS[sys.argv[1]](read(sys.argv[2])))
