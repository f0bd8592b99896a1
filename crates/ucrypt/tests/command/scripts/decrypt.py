"""Decrypts the data of a dm-crypt volume, from the description in the kernel's documentation
(admin-guide/device-mapper/dm-crypt.rst) and nothing of ucrypt:
IMAGE KEY CIPHER OFFSET SECTOR [FIRST-SECTOR-OF-THE-IV [BYTES-THAT-THE-IV-COUNTS]]."""

import hashlib
import sys

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

image, key, cipher, *numbers = sys.argv[1:]
offset, sector, first, unit = [int(number) for number in numbers] + [0, 512][len(numbers) - 2 :]
with open(key, "rb") as file:
    key = file.read()
with open(image, "rb") as file:
    file.seek(offset)
    data = file.read()


def mode(number):
    """The mode with its IV. CIPHER is in dm-crypt's notation."""
    plain64 = number.to_bytes(8, "little") + bytes(8)
    if cipher == "aes-xts-plain64":
        return modes.XTS(plain64)
    if cipher == "aes-cbc-plain":
        return modes.CBC(plain64[:4] + bytes(12))
    assert cipher == "aes-cbc-essiv:sha256", cipher
    salt = hashlib.sha256(key).digest()
    encryptor = Cipher(algorithms.AES(salt), modes.ECB()).encryptor()
    return modes.CBC(encryptor.update(plain64) + encryptor.finalize())


for start in range(0, len(data), sector):
    # The IV counts 512-byte sectors, whatever the size of an encryption sector, unless told else.
    decryptor = Cipher(algorithms.AES(key), mode((first * 512 + start) // unit)).decryptor()
    plain = decryptor.update(data[start : start + sector]) + decryptor.finalize()
    sys.stdout.buffer.write(plain)
