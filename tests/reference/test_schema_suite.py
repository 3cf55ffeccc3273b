"""The official JSON-Schema-Test-Suite through the compiler: what it or python-jsonschema rejects is never accepted, and
what is refused at compile time is a known gap of docs/api.md.

The suite of drafts 4 to 2020-12 comes from the source package of jsonschema (pip), an older one of draft 4 from
npm's json-schema-test-suite; both are kept in the cache folder.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import jsonschema
import pytest

import test_grammar

CACHE = pathlib.Path(os.environ.get("QUIRE_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "quire") / "downloads"
PIP, NPM = "jsonschema==4.26.0", "json-schema-test-suite@0.0.10"
DRAFTS = {"draft4": jsonschema.Draft4Validator, "draft6": jsonschema.Draft6Validator, "draft7": jsonschema.Draft7Validator,
          "draft2019-09": jsonschema.Draft201909Validator, "draft2020-12": jsonschema.Draft202012Validator}
GAPS = re.compile(
    r"only references into the schema itself|Only absolute \$ref's|Reference segment '.*(~|%|unknown-keyword|examples)"
    r"|`(not|if|contains|dependencies|dependentRequired|dependentSchemas|propertyNames|uniqueItems|unevaluatedItems|unevaluatedProperties"
    r"|\$dynamicRef|\$recursiveRef|multipleOf)` is|oneOf constraints are not supported|are not disjoint|integers beyond 2\^53"
    r"|schema is false|no value fits|unrecognized escape|look-around|`minProperties`|`prefixItems` beside"
    r"|format.*not supported|/format: |Unknown format|invalid regex|Unsatisfiable|Invalid Unicode|^/.*(json-pointer|uri-reference|uri-template|idn-email|idn-hostname|regex|iri|iri-reference)$"
    r"|: (json-pointer|relative-json-pointer|uri-reference|uri-template|idn-email|idn-hostname|regex|iri|iri-reference)$")


def fetch(name, command):
    folder = CACHE / f"schema-suite-{name}"
    if not folder.exists():
        partial = CACHE / f"schema-suite-{name}.{os.getpid()}"
        partial.mkdir(parents=True)
        subprocess.run(command, cwd=partial, check=True, stdout=subprocess.DEVNULL)
        (archive,) = [p for p in partial.iterdir() if p.suffix in (".gz", ".tgz")]
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
        partial.rename(folder)
    (inner,) = [p for p in folder.iterdir() if p.is_dir()]
    return inner


def suites():
    yield fetch("pip", [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--no-binary", "jsonschema", PIP]) / "json/tests"
    if shutil.which("npm"):
        yield fetch("npm", ["npm", "--silent", "pack", NPM]) / "tests"


@pytest.mark.long
def test_nothing_that_is_invalid_is_accepted_and_every_refusal_is_known():
    cases = []
    for root in suites():
        for draft, validator in DRAFTS.items():
            for file in sorted([*root.glob(f"{draft}/*.json"), *root.glob(f"{draft}/optional/*.json")]):
                cases += [(validator, str(file.relative_to(root)), case) for case in json.loads(file.read_text())]
    assert len(cases) > 1500
    requests = [test_grammar.schema_request(case["schema"], [json.dumps(t["data"], ensure_ascii=False) for t in case["tests"]])
                for _, _, case in cases]
    refused = rejected = stricter = 0
    for (validator, file, case), answer in zip(cases, test_grammar.tool(requests)):
        shown = (file, case["description"], json.dumps(case["schema"])[:300])
        if "error" in answer:
            assert GAPS.search(answer["error"]), (answer["error"], shown)
            refused += 1
            continue
        for instance, accepted in zip(case["tests"], answer["accepted"]):
            try:
                by_python = validator(case["schema"]).is_valid(instance["data"])
            except re.error:                # a pattern that Python cannot read
                by_python = instance["valid"]
            valid = by_python
            if file.endswith("ecmascript-regex.json"):      # \d and \w are ECMA's, \s is Python's
                valid = valid or instance["valid"]
            elif "/optional/" not in file and not file.endswith(("/content.json", "/format.json")):
                valid = valid and instance["valid"]
            rejected += not valid
            stricter += valid and not accepted
            assert valid or not accepted, (instance, shown)
    print(f"{len(cases)} schemas, {refused} refused; of {rejected} invalid instances none accepted; {stricter} valid ones not accepted")
    assert rejected > 1000 and refused < len(cases) / 2
