"""Hash slots of Redis Cluster."""

from binascii import crc_hqx

SLOTS = 16_384


def slot_of(tag: str) -> int:
    """The slot of every key that carries this hash tag: CRC16 (XMODEM) modulo 16,384."""
    return crc_hqx(tag.encode(), 0) % SLOTS
