#!/usr/bin/env python3
"""Kernel sets hold the instructions that they are named after, and none that belong to others.

  check_instructions.py OBJDUMP SET=ARCHIVE…

A set is handed out when the CPU has its instructions (kernels.c), so one of another set in it would
end the process on a machine that lacks it; and some sets cannot run on the machine that tests them.
"""
import re
import subprocess
import sys

# Of a set: what must be in it so many times at least (sanitizers leave loops rolled up), and what must not be.
EVEX_ONLY = r"%zmm\d|%[xy]mm(1[6-9]|2\d|3[01])\b|\{%k[1-7]\}"
RULES = {
    "avx2": ([(r"\tvpmaddwd .*%ymm", 20)], EVEX_ONLY + r"|vpdpwssd|vpdpbusd"),
    "avxvnni": ([(r"\{vex\} vpdpwssd .*%ymm", 20)], EVEX_ONLY + r"|\tvpdpwssd|\tvpdpbusd"),
    "avx512": ([(r"\tvpdpwssd .*%zmm", 20)], r"\{vex\}"),
    "avxvnni_as_evex": ([(r"\tvpdpwssd .*%ymm", 20)], r"\{vex\}"),
    "neon": ([(r"\tsmull2?\t", 20)], r"\t[su]dot\t|\tusdot\t|\t[su]?mmla\t|\tz\d"),
    "dotprod": ([(r"\tsdot\t", 20)], r"\tusdot\t|\t[su]mmla\t|\tz\d"),
}


def main():
    objdump, *sets = sys.argv[1:]
    wrong = 0 if sets else 1
    for name, archive in (entry.split("=", 1) for entry in sets):
        text = subprocess.run([objdump, "-d", "--no-show-raw-insn", archive], check=True,
                              capture_output=True, text=True).stdout.splitlines()
        wanted, forbidden = RULES[name]
        for pattern, least in wanted:
            found = sum(1 for line in text if re.search(pattern, line))
            print("%s: %d of %s" % (name, found, pattern))
            wrong += found < least
        strange = [line for line in text if re.search(forbidden, line)]
        for line in strange[:5]:
            print("%s: unexpected %s" % (name, line))
        wrong += len(strange)
    sys.exit(1 if wrong else 0)


main()
