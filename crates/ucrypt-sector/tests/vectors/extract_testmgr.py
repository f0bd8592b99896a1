#!/usr/bin/env python3
"""Makes the vector files beside it from the Linux kernel's crypto/testmgr.h.

Usage: extract_testmgr.py path/to/crypto/testmgr.h

The files hold test data only: for each vector its key, IV, plaintext and ciphertext in hex.
Vectors that are no whole number of blocks, and those longer than a page, are left out.
"""
import pathlib
import re
import sys

# kernel algorithm -> (template in testmgr.h, block length in bytes)
TEMPLATES = {
    "adiantum(xchacha12,aes)": ("adiantum_xchacha12_aes_tv_template", 16),
    "adiantum(xchacha20,aes)": ("adiantum_xchacha20_aes_tv_template", 16),
    "cbc(aes)": ("aes_cbc_tv_template", 16),
    "cbc(aria)": ("aria_cbc_tv_template", 16),
    "cbc(blowfish)": ("bf_cbc_tv_template", 8),
    "cbc(camellia)": ("camellia_cbc_tv_template", 16),
    "cbc(cast5)": ("cast5_cbc_tv_template", 8),
    "cbc(cast6)": ("cast6_cbc_tv_template", 16),
    "cbc(des3_ede)": ("des3_ede_cbc_tv_template", 8),
    "cbc(serpent)": ("serpent_cbc_tv_template", 16),
    "cbc(sm4)": ("sm4_cbc_tv_template", 16),
    "cbc(twofish)": ("tf_cbc_tv_template", 16),
    "ctr(aes)": ("aes_ctr_tv_template", 16),
    "ctr(aria)": ("aria_ctr_tv_template", 16),
    "ctr(blowfish)": ("bf_ctr_tv_template", 8),
    "ctr(camellia)": ("camellia_ctr_tv_template", 16),
    "ctr(cast5)": ("cast5_ctr_tv_template", 8),
    "ctr(cast6)": ("cast6_ctr_tv_template", 16),
    "ctr(des3_ede)": ("des3_ede_ctr_tv_template", 8),
    "ctr(serpent)": ("serpent_ctr_tv_template", 16),
    "ctr(sm4)": ("sm4_ctr_tv_template", 16),
    "ctr(twofish)": ("tf_ctr_tv_template", 16),
    "ecb(aes)": ("aes_tv_template", 16),
    "ecb(aria)": ("aria_tv_template", 16),
    "ecb(blowfish)": ("bf_tv_template", 8),
    "ecb(camellia)": ("camellia_tv_template", 16),
    "ecb(cast5)": ("cast5_tv_template", 8),
    "ecb(cast6)": ("cast6_tv_template", 16),
    "ecb(des3_ede)": ("des3_ede_tv_template", 8),
    "ecb(serpent)": ("serpent_tv_template", 16),
    "ecb(sm4)": ("sm4_tv_template", 16),
    "ecb(twofish)": ("tf_tv_template", 16),
    "essiv(cbc(aes),sha256)": ("essiv_aes_cbc_tv_template", 16),
    "hctr2(aes)": ("aes_hctr2_tv_template", 16),
    "lrw(aes)": ("aes_lrw_tv_template", 16),
    "lrw(camellia)": ("camellia_lrw_tv_template", 16),
    "lrw(cast6)": ("cast6_lrw_tv_template", 16),
    "lrw(serpent)": ("serpent_lrw_tv_template", 16),
    "lrw(twofish)": ("tf_lrw_tv_template", 16),
    "xts(aes)": ("aes_xts_tv_template", 16),
    "xts(camellia)": ("camellia_xts_tv_template", 16),
    "xts(cast6)": ("cast6_xts_tv_template", 16),
    "xts(serpent)": ("serpent_xts_tv_template", 16),
    "xts(twofish)": ("tf_xts_tv_template", 16),
}
FIELD = re.compile(r'\.(\w+)\s*=\s*((?:"(?:[^"\\]|\\.)*"\s*)+|[^,"{}]+)')
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r"\\x([0-9a-fA-F]{1,2})|\\([0-7]{1,3})|\\(.)|(.)", re.S)


def c_bytes(text):
    """The bytes of adjacent C string literals."""
    out = bytearray()
    for literal in LITERAL.findall(text):
        for hexa, octal, special, plain in ESCAPE.findall(literal):
            if hexa:
                out.append(int(hexa, 16))
            elif octal:
                out.append(int(octal, 8))
            elif special:
                out.append({"n": 10, "t": 9, "r": 13}.get(special, ord(special)))
            else:
                out.append(ord(plain))
    return bytes(out)


def vectors(source, template):
    """Yields (key, iv, ptext, ctext) of each entry of a template."""
    start = source.index(f"cipher_testvec {template}[]")
    body = source[start : source.index("\n};", start)]
    for entry in re.split(r"\}\s*,\s*\{", body):
        entry = re.sub(r"/\*.*?\*/", "", entry, flags=re.S)
        fields = {name: value for name, value in FIELD.findall(entry)}
        # A vector for the empty key has no key length.
        if "ctext" not in fields or "klen" not in fields:
            continue
        length, key_length = int(fields["len"]), int(fields["klen"])
        key, iv, ptext, ctext = (
            # The kernel has one string of zeros for all that is zero.
            bytes(64 + length) if "zeroed_string" in fields.get(name, "")
            else c_bytes(fields.get(name, ""))
            for name in ("key", "iv", "ptext", "ctext")
        )
        yield key[:key_length], iv[:32], ptext[:length], ctext[:length]


def main():
    source = pathlib.Path(sys.argv[1]).read_text()
    for algorithm, (template, block) in TEMPLATES.items():
        name = re.sub(r"\W+", "-", algorithm).strip("-") + ".txt"
        out = [f"# {algorithm}: Linux 6.1, crypto/testmgr.h, {template}", ""]
        for key, iv, ptext, ctext in vectors(source, template):
            assert len(ptext) == len(ctext)
            if len(ptext) % block or len(ptext) > 4096:
                continue
            for field, value in zip(("key", "iv", "pt", "ct"), (key, iv, ptext, ctext)):
                out.append(f"{field} = {value.hex()}")
            out.append("")
        pathlib.Path(__file__).with_name(name).write_text("\n".join(out))


main()
