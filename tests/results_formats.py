"""results_formats.py: checks a result of course/results.py against the document of its format, which results.py names.

    tests/results_formats.py FORMAT FILE

FILE was made from the result in test_results.sh. A key that the document does not have is a mistake, too.
"""
import csv
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

VISIBILITY = {"hidden", "after_due_date", "after_published", "visible"}
FORMAT = {"text", "html", "simple_format", "md", "ansi"}
NUMBER = (int, float)
TIME = r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?"  # SUREFIRE_TIME of junit-10.xsd


def check(value, required, optional):
    """value has all required keys, and no others but the optional ones. A rule is a type, or a set of values."""
    assert set(required) <= set(value) <= set(required | optional), sorted(value)
    for key, rule in (required | optional).items():
        if key in value:
            good = value[key] in rule if isinstance(rule, set) else isinstance(value[key], rule)
            assert good, f"{key} is {value[key]!r}"


def gradescope(text):
    top = json.loads(text)
    texts = {"output": str, "output_format": FORMAT, "visibility": VISIBILITY, "extra_data": dict}
    check(top, {"tests": list}, texts | {"score": NUMBER, "execution_time": NUMBER, "test_output_format": FORMAT,
          "test_name_format": FORMAT, "stdout_visibility": VISIBILITY, "leaderboard": list})
    for test in top["tests"]:
        check(test, {"score": NUMBER, "max_score": NUMBER}, texts | {"status": {"passed", "failed"}, "name": str,
              "name_format": FORMAT, "number": str, "tags": list})
    for row in top["leaderboard"]:
        check(row, {"name": str, "value": (int, float, str)}, {"order": {"asc", "desc"}})
    assert [(test["number"], test["score"]) for test in top["tests"]] == [("1", 15), ("2", 0)]
    assert "error: 'x' < y" in top["output"] and top["execution_time"] == 13 and "score" not in top


def autolab(text):
    feedback, last = map(json.loads, text.splitlines())
    check(feedback, {"_presentation": {"semantic"}, "stages": list}, dict.fromkeys(feedback["stages"], dict))
    assert [test["passed"] for stage in feedback["stages"] for test in feedback[stage].values()] == [True, False]
    assert last == {"scores": {"stage1_naive": 15}}


def classroom50(text):
    top = json.loads(text)
    strings = ["classroom", "assignment", "owner", "submission", "commit", "release", "review", "datetime"]
    check(top, dict.fromkeys(strings, str) | {"schema": {"classroom50/result/v1"}, "score": int, "max-score": int,
          "assignment_type": {"individual", "group"}, "tests": list}, {"graded_at": str, "submitted_by": dict})
    assert top["submission"].startswith("submit/") and top["owner"] == "ada" and top["review"] == top["commit"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", top["datetime"]), top["datetime"]
    for test in top["tests"]:  # which may have more keys
        assert isinstance(test["passed"], bool) and test["test-name"] and 0 <= test["score"] <= test["max-score"]
    assert sum(test["score"] for test in top["tests"]) == top["score"] == 15 and top["max-score"] == 30


def junit(text):
    suites = ElementTree.fromstring(text)
    suite, = suites
    cases = suite.findall("testcase")
    assert (suites.tag, suite.tag) == ("testsuites", "testsuite")
    counts = dict.fromkeys(["name", "tests", "failures", "errors"], str)
    check(suites.attrib, {}, counts | {"time": str})
    check(suite.attrib, counts, {"time": str})
    assert re.fullmatch(TIME, suite.get("time")), suite.get("time")
    assert [child.tag for child in suite] == ["testcase"] * len(cases) + ["system-out"]
    for case in cases:
        check(case.attrib, {"name": str}, {"classname": str, "time": str})
    failed, = [child for case in cases for child in case]
    check(failed.attrib, {}, {"type": str, "message": str})
    assert failed.tag == "failure" and "is 1 < 2 é ??" in failed.text
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert cases[0].get("name") == '1 Ranks, "all" <two> & more'


def csv_line(text):
    rows = list(csv.reader(text.splitlines()))
    assert rows == [["O'Hara, Ada", "stage1_naive", "15", "30", "does not build", "15", "0"]], rows


CHECKS = {"gradescope": gradescope, "autolab": autolab, "classroom50": classroom50, "junit": junit, "csv": csv_line}
CHECKS[sys.argv[1]](Path(sys.argv[2]).read_text(encoding="utf-8"))
