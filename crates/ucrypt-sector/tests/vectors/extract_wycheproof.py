#!/usr/bin/env python3
"""Makes xts-aes-wycheproof.txt beside it from Wycheproof's testvectors_v1/aes_xts_test.json.

Usage: extract_wycheproof.py path/to/aes_xts_test.json

Messages that are no whole number of blocks are left out: sectors have no ciphertext stealing. A
short IV is the start of one that goes on with zeros.
"""
import json
import pathlib
import sys


def main():
    document = json.loads(pathlib.Path(sys.argv[1]).read_text())
    assert document["algorithm"] == "AES-XTS"
    out = ["# xts(aes): Wycheproof (C2SP/wycheproof), testvectors_v1/aes_xts_test.json", ""]
    for group in document["testGroups"]:
        for test in group["tests"]:
            if len(test["msg"]) % 32 or test["result"] != "valid":
                continue
            for name, field in (("key", "key"), ("iv", "iv"), ("pt", "msg"), ("ct", "ct")):
                out.append(f"{name} = {test[field]}")
            out.append("")
    pathlib.Path(__file__).with_name("xts-aes-wycheproof.txt").write_text("\n".join(out))


main()
