"""Philox 4x32-10 written out, the generator that kernels of a GPU draw from."""


def philox(key: int, block: int, step: int) -> list[int]:
    """The four words of Philox 4x32-10."""
    k, c, low = [key % 2**32, key >> 32], [block, step, 0, 0], 2**32 - 1
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & low, (a >> 32) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c
