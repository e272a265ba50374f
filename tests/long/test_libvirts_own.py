"""The linter over the domain XML of libvirt's own test suite, from the distribution's source.

libvirt's suite says which of its files it refuses, so each error of ours is either such a file or
stands below with the reason.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from virtgpu.domain.lint import fix, lint
from virtgpu.errors import Config

pytestmark = pytest.mark.long

# What libvirt's suite takes and is an error all the same, by file and rule.
RIGHT = {
    # It says multifunction='off' in words; only the command line is compared, no QEMU is started.
    ("q35-multifunction", "VG102"): "QEMU: single function device can't be populated in function",
    # Run with the capabilities of a QEMU before 2.7; with any newer one libvirt refuses them.
    ("fd-memory-numa-topology2", "VG605"): "CPU topology doesn't match maximum vcpu count",
    ("fd-memory-numa-topology3", "VG605"): "CPU topology doesn't match maximum vcpu count",
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libvirt's tests, fetched with a copy of the machine's own apt sources."""
    root = tmp_path_factory.mktemp("libvirt")
    for name in ("lists/partial", "parts", "cache/archives/partial"):
        (root / name).mkdir(parents=True)
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        text = file.read_text()
        if "deb.debian.org" in text:
            sources = re.sub(r"(?m)^Types:.*$", "Types: deb-src", text)
            (root / "parts" / file.name).write_text(sources)
    config = root / "apt.conf"
    config.write_text(
        f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{root}/parts";\n'
        f'Dir::State::lists "{root}/lists";\nDir::Cache "{root}/cache";\n'
        'APT::Sandbox::User "root";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(config)}
    for words in (["update"], ["source", "--download-only", "libvirt"]):
        subprocess.run(
            ["apt-get", "-q", *words], cwd=root, env=environment, check=True, capture_output=True
        )
    (archive,) = root.glob("libvirt_*.orig.tar.*z")
    subprocess.run(["tar", "-xf", archive.name], cwd=root, check=True)
    return next(root.glob("libvirt-*")) / "tests"


def _stem(path: Path) -> str:
    return path.name.removesuffix(".xml").partition(".")[0].removeprefix("bhyvexml2argv-")


def _refused(suite: Path) -> set[str]:
    """The files that libvirt's suite expects to be refused."""
    call = r'DO_TEST\w*(?:PARSE_ERROR|FAIL)\w*\(\s*"([^"]+)"'
    return {name for file in suite.glob("*.c") for name in re.findall(call, file.read_text())}


def test_no_file_makes_it_fall_and_each_error_is_one_for_libvirt_too(suite: Path) -> None:
    refused = _refused(suite)
    assert len(refused) > 200
    checked, counts = 0, defaultdict(int)
    wrong, schema = [], set()
    for path in sorted(suite.rglob("*.xml")):
        raw = path.read_bytes()
        try:
            report = lint(raw)
            fix(raw)
        except Config:  # a network, a snapshot, a file that is broken on purpose
            continue
        checked += 1
        for one in report.findings:
            counts[one.code] += 1
            key = (_stem(path), one.code)
            if one.code == "VG001":
                schema.add(path.name)
            elif one.severity == "error" and key[0] not in refused and key not in RIGHT:
                wrong.append(f"{path.name}:{one.line}: {one.message} [{one.code}]")
    assert checked > 2000
    assert wrong == []
    # tests/virschematest.c: what the schema must refuse has this ending, and nothing else has.
    assert [name for name in schema if "-invalid" not in name] == []
    assert len(counts) >= 35
