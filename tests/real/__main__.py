"""Runs the tests of the built program, two classes at once for each core, since most of them wait for programs.

usage: python3 tests/real [MODULE[.CLASS[.TEST]] ...]   these tests, or all of them
       python3 tests/real --program                     those that `tests/run` runs
       python3 tests/real --rest | --weekly             those that `tests/run all` and `tests/run weekly` run beside them
"""

import os
import re
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The pages with what is promised, and with what attackers try.
PROMISES = [HERE.parents[1] / "docs" / "guarantees.md", HERE.parents[1] / "SECURITY.md"]
# Beside the tests that those name: the first command, the page, the guides, and a client library.
FIRST = {"dev_test", "page_test", "guides_test", "test_web3_js", "test_payment_of_the_readme"}
# These need Solana's Rust client or command line.
WEEKLY = {"test_solana_rpc_client", "test_payment_in_rust", "test_libraries_watch_together_with_rusts", "test_commands_of_solana"}


class Result(unittest.TextTestResult):
    """Writes a line for each test as cargo's tests do, with its time."""

    def startTest(self, test):
        super().startTest(test)
        self.began, self.said = time.monotonic(), False

    def say(self, test, outcome):
        if not self.said:
            self.said = True
            self.stream.writeln(f"test {test.id()} ... {outcome} <{time.monotonic() - getattr(self, 'began', time.monotonic()):.3f}s>")

    def addSuccess(self, test):
        self.say(test, "ok")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.say(test, "FAILED")

    def addError(self, test, error):
        super().addError(test, error)
        self.say(test, "FAILED")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.say(test, "FAILED")


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def found():
    """Returns the ids of all tests, MODULE.CLASS.TEST each."""
    loader = unittest.TestLoader()
    ids = [test.id() for test in tests_of(loader.discover(str(HERE), "*_test.py"))]
    if loader.errors:
        sys.exit("\n".join(loader.errors))
    return ids


def chosen(arguments, ids):
    if not arguments:
        return ids
    if arguments[0] not in ("--program", "--rest", "--weekly"):
        is_named = lambda test: any(f"{test}.".startswith(f"{name}.") for name in arguments)
        return [test for test in ids if is_named(test)]
    promised = FIRST | {name for page in PROMISES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    def part(test):
        module, _, name = test.split(".")
        return "--weekly" if name in WEEKLY else "--program" if {module, name} & promised else "--rest"
    return [test for test in ids if part(test) == arguments[0]]


def run_class(tests):
    """Runs the tests of one class in a process of their own, and prints what it says in one piece."""
    ran = subprocess.run([sys.executable, __file__, "--here", *tests], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(ran.stdout, end="", flush=True)
    return ran.returncode == 0


def main(arguments):
    sys.path.insert(0, str(HERE))
    if arguments[:1] == ["--here"]:
        suite = unittest.TestLoader().loadTestsFromNames(arguments[1:])
        return 0 if unittest.TextTestRunner(resultclass=Result, verbosity=0).run(suite).wasSuccessful() else 1
    tests = chosen(arguments, found())
    if not tests:
        sys.exit(f"no test has the name {' '.join(arguments)}")
    classes = {}
    for test in tests:
        classes.setdefault(test.rsplit(".", 1)[0], []).append(test)
    with ThreadPoolExecutor(2 * (os.cpu_count() or 2)) as several:
        return 0 if all(list(several.map(run_class, classes.values()))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
