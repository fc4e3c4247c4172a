"""What clients trust while tests run: one certificate. All servers of the tests speak plain HTTP on loopback.

Each client of object storage, however short it lives, reads all certificates that it is told of, or that the machine has.
"""

from __future__ import annotations

from pathlib import Path

import certifi

_END = "-----END CERTIFICATE-----\n"


def one_certificate(folder: str) -> str:
    """Path of a file with the first of certifi's certificates, which is written into ``folder``."""
    made = Path(folder) / "certificates.pem"
    made.write_text(Path(certifi.where()).read_text().partition(_END)[0] + _END)
    return str(made)
