"""The starter of the tests: the log of a program is complete however often a test reads it."""

import sys
import unittest

from gateway import Program


class ProgramTest(unittest.TestCase):
    def test_reading_a_log_overwrites_nothing(self):
        with Program("-c", "for i in range(20_000): print(i, flush=True)", program=sys.executable) as program:
            while program.is_running():
                program.printed()
            self.assertEqual(program.printed().split(), [str(i) for i in range(20_000)])


if __name__ == "__main__":
    unittest.main()
