"""Tags with which a bucket of S3 is created. moto takes no notice of them, so they are put on the bucket by a second request."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from multidict import CIMultiDict

from .http import Incoming

_SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def tagging(request: Incoming) -> Incoming | None:
    """The PutBucketTagging that belongs to a CreateBucket with tags; None for any other request.

    Args:
        request: A request for S3.
    """
    if request.method != "PUT" or "?" in request.path or b"CreateBucketConfiguration" not in request.body:
        return None
    try:
        wanted = ET.fromstring(request.body)
    except ET.ParseError:
        return None
    tags = wanted.findall(".//{*}Tags/{*}Tag")
    if not wanted.tag.endswith("CreateBucketConfiguration") or not tags:
        return None
    document = ET.Element("Tagging", xmlns=_SPACE)
    into = ET.SubElement(document, "TagSet")
    for tag in tags:
        copy = ET.SubElement(into, "Tag")
        for part in ("Key", "Value"):
            ET.SubElement(copy, part).text = tag.findtext(f"{{*}}{part}") or ""
    headers = CIMultiDict(request.headers)
    for name in ("Content-MD5", "Content-Length"):
        headers.popall(name, None)
    return Incoming("PUT", f"{request.path}?tagging", headers, ET.tostring(document))
