"""What the dm-crypt vectors are made for: specifications, key lengths and layouts."""

import typing

# Key lengths in bytes. The first one is tested in every layout, the others in OTHER_KEY.
LONG_BLOCKS = {
    "aes": (32, 16, 24),
    "serpent": (32, 16, 24, 5),
    "twofish": (32, 16, 24),
    "camellia": (32, 16, 24),
    "cast6": (32, 16, 20, 24, 28),
    "aria": (32, 16, 24),
    "sm4": (16,),
}
SHORT_BLOCKS = {"cast5": (16, 5, 10, 11), "blowfish": (32, 4, 16, 56), "des3_ede": (24,)}
IVS = (
    "null plain plain64 plain64be benbi essiv:sha256 essiv:md5 eboiv elephant lmk tcw"
).split()
ONLY_512 = ("lmk", "tcw")


class Layout(typing.NamedTuple):
    """The options of a table line that are not the specification or the key."""

    sector_size: int
    large: bool
    iv_offset: int

    def __str__(self):
        return f"{self.sector_size}{'L' if self.large else ''} {self.iv_offset}"


class Case(typing.NamedTuple):
    """A specification with a key length, and the layouts that it is tried with."""

    spec: str
    key_len: int
    layouts: tuple


def layouts():
    """Each run starts at the IV number 0, or at 2^32-1 and goes on to 2^32."""
    yield Layout(512, False, 0)
    yield Layout(512, False, 2**32 - 1)
    yield Layout(512, True, 2**32 - 1)
    for size in (1024, 2048, 4096):
        step = size // 512
        yield Layout(size, False, 0)
        yield Layout(size, False, 2**32 - step)
        yield Layout(size, True, 0)
        yield Layout(size, True, (2**32 - 1) * step)


EVERY = tuple(layouts())
EVERY_512 = EVERY[:3]
OTHER_KEY = (Layout(512, False, 2**32 - 1), Layout(4096, True, (2**32 - 1) * 8))
OTHER_KEY_512 = OTHER_KEY[:1]
# Layouts that together use all 64 keys; one run does not.
ALL_TURNS = tuple(Layout(512, False, first) for first in (0, 16, 32, 48, 2**32 - 1))
REFUSED_4096 = (Layout(4096, False, 0),)


def key_length(cipher, mode, iv, key_len):
    """What dm-crypt cuts from the key beside the cipher's own."""
    short = cipher in SHORT_BLOCKS
    if mode == "xts":
        key_len *= 2
    if mode == "lrw":
        key_len += 16
    # ECB has no IV, and ignores a named one.
    if iv == "elephant" and mode != "ecb":
        key_len *= 2
    if iv == "tcw" and mode != "ecb":
        key_len += (8 if short else 16) + 16
    return key_len


def ivs(mode):
    """The IVs that are tried with a mode."""
    # For IVs of 32 bytes, tcw reads behind the sector number on the kernel's stack (crypt_iv_tcw_gen), so its
    # result differs every time.
    wide = mode in ("adiantum", "hctr2")
    return [iv for iv in IVS if not (wide and iv == "tcw")]


def matrix():
    """Every cipher, mode and IV."""
    for cipher, lengths in (LONG_BLOCKS | SHORT_BLOCKS).items():
        for mode in ("xts", "cbc", "ecb", "ctr", "lrw", "pcbc", "hctr2"):
            for iv in ivs(mode):
                only_512 = iv in ONLY_512
                for index, key_len in enumerate(lengths):
                    tried = EVERY_512 if only_512 else EVERY
                    # The diffuser's AES shares the key; these modes have keys of 16 to 32 bytes.
                    main = 1 if iv == "elephant" and mode in ("xts", "lrw") else 0
                    if index != main and len(lengths) > 1:
                        tried = OTHER_KEY_512 if only_512 else OTHER_KEY
                    length = key_length(cipher, mode, iv, key_len)
                    yield Case(f"{cipher}-{mode}-{iv}", length, tried)
    for cipher in ("xchacha12,aes", "xchacha20,aes"):
        for iv in ivs("adiantum"):
            key_len = key_length(cipher, "adiantum", iv, 32)
            yield Case(f"{cipher}-adiantum-{iv}", key_len, EVERY_512 if iv in ONLY_512 else EVERY)


def singles():
    """Other notations, key counts, hashes, and what should be refused."""
    for spec, *key_lengths in (
        ("aes-ecb", 16, 24, 32),
        ("aes", 32),
        ("aes-plain", 16),
        ("capi:xts(aes)-plain64", 64),
        ("capi:cbc(aes)-essiv:sha256", 32),
        ("capi:essiv(cbc(aes),sha256)-plain64", 32),
        ("capi:essiv(cbc(aes),sha256)-plain64be", 32),
        ("capi:ecb(serpent)-null", 32),
        ("capi:ctr(twofish)-plain64be", 32),
        ("capi:lrw(camellia)-benbi", 48),
        ("capi:adiantum(xchacha12,aes)-plain64", 32),
        ("capi:adiantum(xchacha20,aes)-plain64", 32),
        ("capi:hctr2(aes)-plain64", 32),
        ("capi:cts(cbc(aes))-plain64", 32),
        ("xchacha12,serpent-adiantum-plain64", 32),
        ("xchacha20,twofish-adiantum-plain64", 32),
        ("aes:2-cbc-essiv:sha256", 64),
        ("aes:4-xts-plain64", 256, 128),
        ("aes:2-cbc-eboiv", 64),
        ("aes:2-cbc-elephant", 64),
        ("aes:2-lrw-benbi", 96),
        ("serpent:8-ctr-plain64", 256),
        ("cipher_null-ecb", 0, 32),
        ("cipher_null-ecb-null", 0),
        ("cipher_null-cbc-plain64", 0),
        ("cipher_null", 0),
        ("null-ecb", 0),
    ):
        for key_len in key_lengths:
            yield Case(spec, key_len, EVERY)
    for spec, *key_lengths in (
        ("aes:64-cbc-lmk", 1024, 1040, 2048, 2080),
        ("capi:cbc(aes)-lmk", 1040),
        ("serpent:64-cbc-lmk", 1040),
        ("aes:64-cbc-plain64", 1024),
        ("aes:128-cbc-plain64", 2048),
        ("aes:2-cbc-lmk", 32, 48),
        ("aes:2-cbc-tcw", 96),
    ):
        for key_len in key_lengths:
            yield Case(spec, key_len, ALL_TURNS)
    hashes = (
        "sha1 sha224 sha384 sha512 rmd160 wp512 sha3-224 sha3-256 sha3-384 sha3-512 blake2b-160 "
        "blake2b-256 blake2b-384 blake2b-512 sm3 streebog256 streebog512 md4"
    ).split()
    for name in hashes:
        # The digest must have a key length: 16, 24 or 32 bytes for AES, up to 32 for Serpent, 56 here.
        for cipher, key_len in (("aes", 32), ("serpent", 32), ("blowfish", 32)):
            yield Case(f"{cipher}-cbc-essiv:{name}", key_len, OTHER_KEY)
    for spec, key_len in (
        ("aes-cbc-lmk", 32),
        ("aes-cbc-tcw", 64),
        ("aes:64-cbc-lmk", 1040),
    ):
        yield Case(spec, key_len, REFUSED_4096)
    for spec, key_len in (
        ("aes-xts-plain64", 33),
        ("aes-xts-plain64", 16),
        ("aes-cbc-plain64", 20),
        ("aes-cbc-tcw", 32),
        ("aes:3-cbc-plain64", 96),
        ("aes:65-cbc-lmk", 1040),
        ("aes:2-cbc-plain64", 48 + 1),
        ("serpent-cbc-plain64", 33),
        ("serpent-cbc-plain64", 1),
        ("serpent-cbc-plain64", 0),
        ("blowfish-cbc-plain64", 3),
        ("cast5-cbc-plain64", 4),
        ("des3_ede-cbc-plain64", 16),
        ("aes-cbc-essiv", 32),
        ("aes-cbc", 32),
        ("aes-cbc-plain65", 32),
        ("aes-xtc-plain64", 32),
        ("aess-xts-plain64", 64),
        ("xts(aes)-plain64", 64),
    ):
        yield Case(spec, key_len, OTHER_KEY)
    # An offset inside a large sector.
    yield Case("aes-xts-plain64", 64, (Layout(4096, False, 4), Layout(4096, True, 4)))


def all_cases():
    """Every case once, by specification and key length."""
    return [*matrix(), *singles()]
