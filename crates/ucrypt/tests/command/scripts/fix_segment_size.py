"""Gives the first data segment of a LUKS2 image a fixed size, in both header copies, with right
checksums: IMAGE SIZE. From the LUKS2 on-disk format specification, section 2."""

import hashlib
import json
import struct
import sys

path, size = sys.argv[1:]
with open(path, "r+b") as image:
    for start in (0, 0x4000):
        image.seek(start)
        header = bytearray(image.read(0x4000))
        (length,) = struct.unpack(">Q", header[8:16])
        assert length == 0x4000, length
        document = json.loads(header[4096:].rstrip(b"\0"))
        document["segments"]["0"]["size"] = size
        text = json.dumps(document).encode()
        header[4096:] = text + bytes(0x4000 - 4096 - len(text))
        header[0x1C0:0x200] = bytes(64)
        header[0x1C0:0x1E0] = hashlib.sha256(header).digest()
        image.seek(start)
        image.write(header)
