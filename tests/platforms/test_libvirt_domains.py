"""Define, look up and undefine, against libvirt's own test driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from virtgpu.errors import Config, Conflict, NotFound
from virtgpu.host import libvirt_domains as domains

libvirt = pytest.importorskip("libvirt")

UUID = "c7a5fdbd-cdaf-9455-926a-d65c16db1809"
XML = f"""<domain type='test'><name>g1</name><uuid>{UUID}</uuid><memory>65536</memory>
<os><type arch='i686'>hvm</type></os></domain>"""


@pytest.fixture
def connection() -> Iterator[Any]:
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    connection = libvirt.open("test:///default")
    yield connection
    connection.close()


def test_a_defined_guest_is_found_and_undefined_again(connection: Any) -> None:
    assert domains.define(connection, XML) == UUID
    assert f"<uuid>{UUID}</uuid>" in (domains.lookup_xml(connection, "g1") or "")
    domains.undefine(connection, "g1")
    assert domains.lookup_xml(connection, "g1") is None


def test_a_guest_that_is_not_there_has_no_xml(connection: Any) -> None:
    assert domains.lookup(connection, "nobody") is None
    assert domains.lookup_xml(connection, "nobody") is None


def test_undefining_nobody_is_not_found(connection: Any) -> None:
    with pytest.raises(NotFound, match="'nobody'"):
        domains.undefine(connection, "nobody")


def test_a_running_guest_is_never_undefined(connection: Any) -> None:
    with pytest.raises(Conflict, match="'test' is running"):
        domains.undefine(connection, "test")
    assert connection.lookupByName("test").isActive()


def test_a_name_that_has_another_uuid_is_a_conflict(connection: Any) -> None:
    domains.define(connection, XML)
    with pytest.raises(Conflict, match="g1"):
        domains.define(connection, XML.replace("c7a5fdbd", "c7a5fdbe"))


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "no xml",
        XML.replace("<memory>", "<memery>").replace("</memory>", "</memery>"),
        XML.replace("65536", "a lot"),
    ],
)
def test_xml_that_libvirt_refuses_is_a_config_error_with_its_sentence(
    connection: Any, xml: str
) -> None:
    with pytest.raises(Config, match=r"libvirt refuses to define the guest: \S+"):
        domains.define(connection, xml)


def test_a_refusal_is_one_line(connection: Any) -> None:
    with pytest.raises(Config) as caught:
        domains.define(connection, "<domain type='test'><name/></domain>")
    assert "\n" not in caught.value.message
